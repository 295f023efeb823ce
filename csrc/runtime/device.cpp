// SPDX-License-Identifier: Apache-2.0
#include "runtime/device.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>

#include "runtime/base/driver_call.h"
#include "runtime/base/interruption.h"
#include "runtime/streams/watchdog.h"

namespace outboard {
namespace {

constexpr int kPoolStreams = 32;
constexpr int kTransferStream = kPoolStreams + 1;
constexpr int kFirstGraphStream = kTransferStream + 1;
constexpr uint32_t kSerialBuildsSince = 1;  // minor version of the driver interface
constexpr uint32_t kMatrixUnitsSince = 12;  // minor version of the driver interface

struct RuntimeState {
  std::once_flag once;
  std::deque<std::atomic<Device*>> devices;  // those of now; never freed
  std::mutex reset_mutex;
  std::vector<std::string> problems;
  std::vector<std::string> passed_over;
  std::vector<std::string> absent;  // drivers without a device, until it is known whether that is a problem
  std::atomic<bool> shut_down{false};
};

RuntimeState& state() {
  static RuntimeState* const instance = new RuntimeState;  // leaked: see Runtime
  return *instance;
}

thread_local int current_device_index = 0;

/// The calling thread's chosen streams by device index; null where it uses the default one.
std::vector<Stream*>& chosen_streams() {
  thread_local std::vector<Stream*> streams;
  return streams;
}

const ob_driver* load_driver(const std::string& path, std::vector<std::string>& problems) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    problems.push_back(std::string("cannot load driver: ") + dlerror());
    return nullptr;
  }
  const auto entry = reinterpret_cast<ob_driver_entry>(dlsym(library, OB_DRIVER_ENTRY_NAME));
  if (entry == nullptr) {
    problems.push_back(path + " is not an Outboard driver: it does not export " OB_DRIVER_ENTRY_NAME);
    return nullptr;
  }
  const ob_driver* driver = entry();
  if (driver == nullptr) {
    problems.push_back(path + " offers no driver: it could not start");
    return nullptr;
  }
  const std::string problem = misfit(*driver);
  if (!problem.empty()) {
    problems.push_back(path + " " + problem);
    return nullptr;
  }
  static auto* const tables = new std::deque<ob_driver>;  // never freed: devices live as long as the process
  return &tables->emplace_back(whole_table(*driver));
}

/// A device that its driver has opened. Its origin tells other processes which one it is.
struct Opened {
  const ob_driver* driver;
  ob_device handle;
  Device::Origin origin;
};

void open_devices(const std::string& library, const ob_driver* driver, RuntimeState& runtime,
                  std::vector<Opened>& opened) {
  uint32_t count = 0;
  const ob_status status = driver->device_count(&count);
  if (status != OB_OK || count == 0) {
    const char* text = driver->last_error();
    auto& lines = status == OB_OK ? runtime.absent : runtime.problems;
    lines.push_back(std::string(driver->name) + ": " + (text != nullptr ? text : "no devices"));
    return;
  }
  int number = 0;
  for (uint32_t i = 0; i < count; ++i) {
    ob_device handle = nullptr;
    try {
      check(*driver, driver->device_open(i, &handle), "opening a device");
      opened.push_back({driver, handle, Device::Origin{library, number++}});
    } catch (const Error& error) {
      runtime.problems.push_back(std::string(driver->name) + ": " + error.what());
    }
  }
}

void open_drivers(const std::vector<std::string>& paths, RuntimeState& runtime, std::vector<Opened>& opened) {
  for (const std::string& path : paths) {
    const ob_driver* driver = load_driver(path, runtime.problems);
    if (driver != nullptr) open_devices(path, driver, runtime, opened);
  }
}

/// What a device says of itself; nothing if it fails.
std::optional<ob_device_properties> properties_of(const Opened& device) {
  ob_device_properties properties{};
  properties.struct_size = sizeof(properties);
  const bool works = device.driver->device_properties(device.handle, &properties) == OB_OK;
  return works ? std::optional(properties) : std::nullopt;
}

/// Leaves GPUs aside that an earlier driver has opened, too: those of the same vendor are the same.
void drop_repeated(RuntimeState& runtime, std::vector<Opened>& opened) {
  std::map<std::string, const ob_driver*> driver_of;  // by vendor
  const auto is_repeated = [&](const Opened& device) {
    const std::optional<ob_device_properties> properties = properties_of(device);
    if (!properties || properties->type != OB_DEVICE_GPU || properties->vendor[0] == '\0') return false;
    const ob_driver* const first = driver_of.emplace(properties->vendor, device.driver).first->second;
    if (first == device.driver) return false;
    runtime.passed_over.push_back(std::string(device.driver->name) + ": " + properties->name +
                                  " is a device of the driver " + first->name);
    return true;
  };
  opened.erase(std::remove_if(opened.begin(), opened.end(), is_repeated), opened.end());
}

/// A driver without hardware is no problem where another has some, unless the user has named it.
void settle_absent(bool named, bool any, RuntimeState& runtime) {
  auto& lines = named || !any ? runtime.problems : runtime.passed_over;
  lines.insert(lines.end(), runtime.absent.begin(), runtime.absent.end());
  runtime.absent.clear();
}

/// Makes a device of the processor itself, where all others are the processor through another driver, which are left
/// aside then. What kept a driver that is not needed is no problem.
void open_processor(const Runtime::Processor& processor, RuntimeState& runtime, std::vector<Opened>& opened) {
  const auto is_replaced = [&](const Opened& device) {
    const auto& replaced = processor.instead_of;
    if (std::find(replaced.begin(), replaced.end(), device.origin.library) == replaced.end()) return false;
    const std::optional<ob_device_properties> properties = properties_of(device);
    return properties && properties->type == OB_DEVICE_CPU;
  };
  if (processor.drivers.empty() || !std::all_of(opened.begin(), opened.end(), is_replaced)) return;
  std::vector<std::string> others = std::exchange(runtime.problems, {});
  std::vector<Opened> own;
  open_drivers(processor.drivers, runtime, own);
  if (own.empty()) {
    if (!opened.empty()) runtime.passed_over = std::exchange(runtime.problems, {});
    runtime.problems.insert(runtime.problems.begin(), others.begin(), others.end());
    return;
  }
  for (const Opened& device : opened) {
    others.push_back(std::string(device.driver->name) + ": its device is this processor, too");
  }
  opened = std::move(own);
  runtime.passed_over = std::move(others);
}

/// The devices of the process, from those that were opened.
void take_devices(const std::vector<Opened>& opened, const Runtime::Choice& choice, RuntimeState& runtime) {
  std::vector<int> chosen(opened.size());
  std::iota(chosen.begin(), chosen.end(), 0);
  if (choice) chosen = choice(static_cast<int>(opened.size()));
  for (const int number : chosen) {
    const Opened& each = opened.at(static_cast<size_t>(number));
    try {
      const auto index = static_cast<int>(runtime.devices.size());
      runtime.devices.emplace_back(std::make_unique<Device>(each.driver, each.handle, index, each.origin).release());
    } catch (const Error& error) {
      runtime.problems.push_back(std::string(each.driver->name) + ": " + error.what());
    }
  }
}

/// OUTBOARD_MEMORY_LIMIT: bytes, or a number with KiB, MiB or GiB. 0: no limit set.
uint64_t memory_limit() {
  const char* text = std::getenv("OUTBOARD_MEMORY_LIMIT");
  if (text == nullptr || *text == '\0') return 0;
  char* unit = nullptr;
  const double number = std::strtod(text, &unit);
  const std::map<std::string, double> units{{"", 1}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}};
  const auto found = units.find(unit);
  if (unit == text || found == units.end() || !(number * found->second >= 1) || number * found->second >= 0x1p63) {
    throw Error(OB_INVALID_ARGUMENT,
                std::string("OUTBOARD_MEMORY_LIMIT is '") + text + "': use bytes or a size such as 512MiB or 2GiB");
  }
  return static_cast<uint64_t>(number * found->second);
}

void after_fork_in_child() { in_forked_child.store(!state().devices.empty()); }

}  // namespace

struct Device::Impl {
  explicit Impl(const ob_driver& given) : driver(given) {}

  DeviceDriver driver;
  ob_device handle;
  ob_device successor = nullptr;  // what a reset has opened
  Origin origin;
  ob_device_properties properties{};
  std::unique_ptr<ProgramCache> programs;
  std::unique_ptr<LoadedFunctions> functions;
  std::unique_ptr<Assertions> assertions;
  std::mutex mutex;
  std::array<std::unique_ptr<Stream>, kTransferStream + 1> streams;  // 0 is the default stream
  int next_pool_stream = 0;

  struct GraphStream {
    std::unique_ptr<Stream> stream;  // kept, because memory may have been taken on it
    std::weak_ptr<Stream> lease;     // expired: no graph uses it
  };
  std::vector<GraphStream> graph_streams;
};

/// How the device likes its programs, where the driver leaves it open, too.
uint32_t execution_of(const ob_device_properties& properties) {
  if (properties.execution != OB_EXECUTION_UNKNOWN) return properties.execution;
  return properties.vector_width > 1 ? OB_EXECUTION_VECTOR : OB_EXECUTION_SIMT;
}

/// Refuses a device whose allocations may begin where no element of PyTorch's widest type (complex128) may lie: the
/// runtime cuts them at multiples of more, and kernels read elements where they lie.
void check_alignment(const ob_device_properties& properties) {
  constexpr uint64_t kWidestElement = 16;
  if (properties.alignment % kWidestElement == 0 && properties.alignment != 0) return;
  throw Error(OB_INVALID_ARGUMENT, std::string("the driver of ") + properties.name + " aligns allocations to " +
                                       std::to_string(properties.alignment) + " bytes: it must be a multiple of 16");
}

Device::Device(const ob_driver* driver, ob_device handle, int index, Origin origin)
    : index_(index), impl_(std::make_shared<Impl>(*driver)) {
  const uint64_t limit = memory_limit();  // throws if it makes no sense: before there is a stream to lose
  start_watchdog();                       // the same
  impl_->handle = handle;
  impl_->origin = std::move(origin);
  impl_->properties.struct_size = sizeof(ob_device_properties);
  check(impl_->driver, driver->device_properties(handle, &impl_->properties), "reading device properties");
  check_alignment(impl_->properties);
  // Padding in older structs.
  if (driver->abi_minor < kSerialBuildsSince) impl_->properties.serial_builds = 0;
  if (driver->abi_minor < kMatrixUnitsSince) impl_->properties.matrix_units = 0;
  impl_->properties.execution = execution_of(impl_->properties);
  order_ = std::make_unique<WorkOrder>(*this);
  impl_->streams[0] = std::make_unique<Stream>(*this, 0);
  default_stream_ = impl_->streams[0].get();
  allocator_ = std::make_unique<CachingAllocator>(*this);
  residency_ = std::make_unique<Residency>(*this);
  impl_->programs = std::make_unique<ProgramCache>(*this);
  impl_->functions = std::make_unique<LoadedFunctions>(*this);
  impl_->assertions = std::make_unique<Assertions>(*this);
  if (limit != 0) allocator_->set_limit(limit);
}

const Device::Origin& Device::origin() const { return impl_->origin; }
const DeviceDriver& Device::driver() const { return impl_->driver; }
bool Device::lost() const { return impl_->driver.lost(); }
bool Device::was_reset() const { return impl_->driver.was_reset(); }
ob_device Device::handle() const { return impl_->handle; }
const ob_device_properties& Device::properties() const { return impl_->properties; }
ProgramCache& Device::programs() { return *impl_->programs; }

LoadedFunctions& Device::functions() { return *impl_->functions; }
Assertions& Device::assertions() { return *impl_->assertions; }

Stream& Device::pool_stream() {
  int id;
  {
    std::lock_guard lock(impl_->mutex);
    id = 1 + impl_->next_pool_stream;
    impl_->next_pool_stream = (impl_->next_pool_stream + 1) % kPoolStreams;
    if (impl_->streams[static_cast<size_t>(id)] == nullptr) {
      impl_->streams[static_cast<size_t>(id)] = std::make_unique<Stream>(*this, id);
    }
  }
  return stream(id);
}

Stream& Device::stream(int64_t id) {
  if (id == 0) return default_stream();
  std::lock_guard lock(impl_->mutex);
  const auto graph = static_cast<size_t>(id - kFirstGraphStream);
  if (id >= kFirstGraphStream && graph < impl_->graph_streams.size()) return *impl_->graph_streams[graph].stream;
  if (id < 0 || id > kPoolStreams || impl_->streams[static_cast<size_t>(id)] == nullptr) {
    throw Error(OB_INVALID_ARGUMENT, "device " + std::to_string(index()) + " has no stream " + std::to_string(id));
  }
  return *impl_->streams[static_cast<size_t>(id)];
}

std::shared_ptr<Stream> Device::graph_stream(int64_t id) {
  std::lock_guard lock(impl_->mutex);
  std::vector<Impl::GraphStream>& all = impl_->graph_streams;
  if (id != 0) {
    const auto number = static_cast<size_t>(id - kFirstGraphStream);
    std::shared_ptr<Stream> shared =
        id >= kFirstGraphStream && number < all.size() ? all[number].lease.lock() : nullptr;
    if (shared == nullptr) throw Error(OB_INVALID_ARGUMENT, "no graph has the memory pool " + std::to_string(id));
    return shared;
  }
  auto found = std::find_if(all.begin(), all.end(), [](const auto& each) { return !each.stream->keeps_memory(); });
  if (found == all.end()) {
    const auto number = static_cast<int64_t>(kFirstGraphStream + all.size());
    all.push_back({std::make_unique<Stream>(*this, number, *impl_->streams[0]), {}});
    found = all.end() - 1;
  }
  found->stream->keep_memory(true);
  std::shared_ptr<Stream> lease(found->stream.get(), [](Stream* stream) { stream->keep_memory(false); });
  found->lease = lease;
  return lease;
}

Stream* Device::transfer_stream() {
  if (host_accessible()) return nullptr;
  std::lock_guard lock(impl_->mutex);
  std::unique_ptr<Stream>& stream = impl_->streams[kTransferStream];
  if (stream == nullptr) stream = std::make_unique<Stream>(*this, kTransferStream);
  return stream.get();
}

std::vector<Stream*> Device::queues() {
  std::vector<Stream*> all;
  std::lock_guard lock(impl_->mutex);
  for (const auto& stream : impl_->streams) {
    if (stream != nullptr) all.push_back(stream.get());
  }
  return all;
}

std::unique_ptr<Device> Device::reset() {
  const DeviceDriver& table = driver();
  refuse_in_forked_child();
  if (table.device_reset == nullptr) {
    throw Error(OB_UNSUPPORTED, std::string("the driver '") + table.name + "' cannot reset its devices");
  }
  if (impl_->successor == nullptr) give_up();
  auto made = std::make_unique<Device>(&table, impl_->successor, index(), origin());
  made->take_streams_of(*this);
  return made;
}

void Device::give_up() {
  const DeviceDriver& table = driver();
  table.state = DeviceState::kReset;
  const ob_status status = table.device_reset(handle(), &impl_->successor);
  if (status != OB_OK) table.state = DeviceState::kLost;
  check(static_cast<const ob_driver&>(table), status, "resetting the device");  // says nothing new of the device
  table.state = DeviceState::kEnded;
  abandon_streams();
}

/// Streams are known by their numbers, which stay valid.
void Device::take_streams_of(Device& earlier) {
  std::lock_guard lock(earlier.impl_->mutex);
  impl_->next_pool_stream = earlier.impl_->next_pool_stream;
  for (int id = 1; id <= kPoolStreams; ++id) {
    const auto number = static_cast<size_t>(id);
    if (earlier.impl_->streams[number] != nullptr) impl_->streams[number] = std::make_unique<Stream>(*this, id);
  }
}

Stream& Device::successor_of(Stream& earlier) { return earlier.id() > kPoolStreams ? earlier : stream(earlier.id()); }

void Device::synchronize() {
  const std::vector<Stream*> all = queues();
  for (Stream* stream : all) stream->synchronize();
}

void Device::stop() noexcept {
  for (const auto& stream : impl_->streams) {
    if (stream != nullptr) stream->stop();
  }
}

void Device::abandon() noexcept {
  ProgramCache::drop_waiting();
  abandon_streams();
}

void Device::abandon_streams() noexcept {
  for (Stream* stream : queues()) {
    stream->abandon();
    stream->let_go_of_kept();
  }
}

void Device::empty_cache() {
  allocator().empty_cache();
  residency().empty_cache();
}

void Device::reset_accumulated_statistics() {
  allocator().reset_accumulated();
  residency().reset_accumulated();
}

ob_sensors Device::sensors() const {
  ob_sensors read{sizeof(read), OB_NOT_KNOWN, OB_NOT_KNOWN, OB_NOT_KNOWN, OB_NOT_KNOWN, OB_NOT_KNOWN, OB_NOT_KNOWN};
  refuse_if_unusable(driver());
  if (driver().device_sensors == nullptr) return read;
  check(driver(), driver().device_sensors(handle(), &read), "reading sensors");
  return read;
}

std::pair<uint64_t, uint64_t> Device::memory_info() {
  const uint64_t limit = allocator().limit();
  const auto reserved = static_cast<uint64_t>(allocator().statistics().reserved.current);
  uint64_t free = limit > reserved ? limit - reserved : 0;
  if (driver().memory_info == nullptr) return {free, limit};
  uint64_t driver_free = 0, driver_total = 0;
  const ob_status status = driver().memory_info(handle(), &driver_free, &driver_total);
  if (status == OB_UNSUPPORTED) return {free, limit};  // the driver can tell of other devices only
  check(driver(), status, "reading memory information");
  return {std::min(free, driver_free), std::min(limit, driver_total)};
}

Runtime& Runtime::initialize(const std::vector<std::string>& driver_paths, const Choice& choice,
                             const Processor& processor) {
  RuntimeState& runtime = state();
  std::call_once(runtime.once, [&] {
    std::vector<Opened> opened;
    open_drivers(driver_paths, runtime, opened);
    const bool named = processor.drivers.empty();
    if (!named) drop_repeated(runtime, opened);
    open_processor(processor, runtime, opened);
    settle_absent(named, !opened.empty(), runtime);
    take_devices(opened, choice, runtime);
    pthread_atfork(nullptr, nullptr, after_fork_in_child);
  });
  return get();
}

Runtime& Runtime::get() {
  static Runtime* const instance = new Runtime;
  return *instance;
}

int Runtime::device_count() const { return static_cast<int>(state().devices.size()); }

Device& Runtime::device(int index) {
  refuse_in_forked_child();
  if (index < 0 || index >= device_count()) {
    std::string message =
        "invalid device index " + std::to_string(index) + ": there are " + std::to_string(device_count()) + " devices";
    for (const std::string& problem : problems()) message += "\n  " + problem;
    throw Error(OB_INVALID_ARGUMENT, message);
  }
  return *state().devices[static_cast<size_t>(index)].load(std::memory_order_acquire);
}

Device& Runtime::reset(int index) {
  const std::lock_guard lock(state().reset_mutex);
  Device* const fresh = device(index).reset().release();
  state().devices[static_cast<size_t>(index)].store(fresh, std::memory_order_release);
  return *fresh;
}

const std::vector<std::string>& Runtime::problems() const { return state().problems; }
const std::vector<std::string>& Runtime::passed_over() const { return state().passed_over; }
int Runtime::current_device() const { return current_device_index; }

void Runtime::set_current_device(int index) {
  device(index);
  current_device_index = index;
}

void Runtime::restore_current_device(int index) noexcept { current_device_index = index; }

Stream& Runtime::current_stream(int index) {
  const std::vector<Stream*>& chosen = chosen_streams();
  const auto position = static_cast<size_t>(index);
  Stream* stream = position < chosen.size() ? chosen[position] : nullptr;
  Device& owner = device(index);
  if (stream == nullptr) return owner.default_stream();
  return &stream->device() == &owner ? *stream : owner.successor_of(*stream);
}

void Runtime::set_current_stream(Stream& stream) {
  std::vector<Stream*>& chosen = chosen_streams();
  const auto position = static_cast<size_t>(stream.device().index());
  if (chosen.size() <= position) chosen.resize(position + 1, nullptr);
  chosen[position] = &stream;
}

bool Runtime::forked() const { return in_forked_child.load(); }

void Runtime::shutdown(bool hurry) noexcept {
  if (forked() || state().shut_down.exchange(true)) return;
  for (Device* const device : state().devices) {
    try {
      if (!hurry && !was_interrupted() && !device->lost()) device->synchronize();
    } catch (const Error& error) {
      std::fprintf(stderr, "outboard: at exit: %s\n", error.what());
    } catch (...) {  // the user interrupts the exit, too: was_interrupted() knows
    }
    if (hurry || was_interrupted()) device->abandon();
    if (!hurry && !was_interrupted()) device->stop();
  }
  stop_watchdog();
  ProgramCache::stop();
}

}  // namespace outboard
