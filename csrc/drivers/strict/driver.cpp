// SPDX-License-Identifier: Apache-2.0
#include "outboard/driver.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/inner.h"
#include "common/table.h"
#include "strict/collectives.h"
#include "strict/host_memory.h"
#include "strict/memory.h"
#include "strict/operands.h"
#include "strict/options.h"
#include "strict/source.h"
#include "strict/stream.h"
#include "strict/violations.h"

/// The strict driver makes of any other a discrete, slow one that holds its caller to every rule of driver.h: device
/// memory is apart, limits and handles are checked at every call, and all that may be late is.
using namespace outboard::strict;

struct ob_device_t {
  uint32_t index;
  ob_device inner;
  ob_device_properties properties;
  std::shared_ptr<Memory> memory;  // the same after a reset, which leaves nothing in it
  std::atomic<bool> lost{false};
  std::atomic<bool> given_up{false};  // and nothing that is queued begins any more: it was reset
};

/// A program of the wrapped driver's. Queued launches keep it.
struct InnerProgram {
  ~InnerProgram();
  ob_program program = nullptr;
};

struct ob_kernel_t {
  ob_device device;
  std::shared_ptr<InnerProgram> program;
  ob_kernel inner;
  std::string name;
  uint32_t max_work_group_size;
  uint64_t local_memory;
};

struct ob_program_t {
  ob_device device;
  std::shared_ptr<InnerProgram> inner;
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<ob_kernel_t>> kernels;
};

/// A launch with everything that the caller's memory held.
struct Launch {
  std::shared_ptr<InnerProgram> program;
  ob_kernel kernel;
  uint64_t global[3];
  uint32_t local[3];
  std::vector<bool> is_pointer;
  std::vector<std::vector<char>> values;  // pointers as the caller knows them
};

/// A function of the wrapped driver's. Queued calls keep it.
struct InnerFunction {
  ~InnerFunction();
  ob_function function = nullptr;
  bool loaded = false;
};

/// A function of a library, and the operands that it was found for; or one from bytes.
struct ob_function_t {
  ob_device device;
  std::shared_ptr<InnerFunction> inner;
  std::string name;
  std::optional<Operands> like;
};

struct ob_communicator_t {
  ob_device device;
  ob_communicator inner;
  uint32_t rank, size;
  std::atomic<int64_t> pending{0};  // collectives that are queued
  std::atomic<bool> aborted{false};
  std::atomic<bool> joined{false};  // the caller was told that all members are there
  std::atomic<bool> asked{false};
};

struct ob_stream_t {
  ob_device device;
  ob_stream inner;
  std::unique_ptr<std::vector<std::shared_ptr<Launch>>> recording;  // of a graph
  std::unique_ptr<Queue> queue;
};

struct ob_event_t {
  std::shared_ptr<Point> recorded() {
    std::lock_guard<std::mutex> lock(mutex);
    return point;
  }

  ob_device device;
  std::mutex mutex;
  std::shared_ptr<Point> point;  // nullptr: never recorded
};

struct Graph {
  ob_device device;
  std::vector<std::shared_ptr<Launch>> launches;
  std::atomic<int64_t> outstanding{0};
};

namespace {

const ob_driver* inner = nullptr;
constexpr uint32_t kLeastArgumentBytes = 1024;

/// Passes a status of the wrapped driver on, with its text.
ob_status pass(ob_status status) {
  return status == OB_OK || status == OB_NOT_READY ? status : fail(status, inner->last_error());
}

/// Handles that were made and not destroyed.
template <typename T>
class Handles {
 public:
  void add(const T* handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    known_.insert(handle);
  }
  bool remove(const T* handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    return known_.erase(handle) != 0;
  }
  bool has(const T* handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    return known_.count(handle) != 0;
  }

 private:
  std::mutex mutex_;
  std::set<const T*> known_;
};

template <typename T>
Handles<T>& handles() {
  static auto* const instance = new Handles<T>;
  return *instance;
}

ob_status lost_status() { return fail(OB_DEVICE_LOST, "the device was lost"); }

/// OB_OK if the handle may be used.
template <typename T>
ob_status check_handle(T* handle, const char* kind) {
  if (!handles<T>().has(handle)) return violation(std::string("a ") + kind + " that does not exist");
  return handle->device->lost ? lost_status() : OB_OK;
}

ob_status check_device(ob_device device) { return device->lost ? lost_status() : OB_OK; }

ob_status check_stream(ob_stream stream) {
  const ob_status status = check_handle(stream, "stream");
  if (status != OB_OK || stream->recording == nullptr) return status;
  return violation("a call other than launch on a stream that records a graph");
}

// ---- devices ----

std::vector<std::unique_ptr<ob_device_t>>& opened() {
  static auto* const instance = new std::vector<std::unique_ptr<ob_device_t>>;  // leaked: see Runtime
  return *instance;
}

std::mutex& opened_mutex() {
  static auto* const instance = new std::mutex;
  return *instance;
}

ob_status device_count(uint32_t* count) {
  *count = 0;
  if (!Options::get().problem.empty()) return fail(OB_OK, Options::get().problem);
  return pass(inner->device_count(count));
}

const char* last_error() {
  const char* own = outboard::common::last_error();
  return own[0] != '\0' ? own : inner->last_error();
}

bool has_library() {
  return inner->struct_size >= offsetof(ob_driver, library_call) + sizeof(inner->library_call) &&
         inner->library_find != nullptr;
}

ob_status read_properties(ob_device inner_device, ob_device_properties& properties) {
  properties = {};
  properties.struct_size = sizeof(properties);
  const ob_status status = inner->device_properties(inner_device, &properties);
  if (status != OB_OK) return pass(status);
  const std::string name = std::string("strict ") + properties.name;
  std::strncpy(properties.name, name.c_str(), sizeof(properties.name) - 1);
  if (inner->abi_minor < 1) properties.serial_builds = 0;
  if (inner->abi_minor < 5) properties.max_argument_bytes = 0;
  if (!has_library()) properties.library[0] = '\0';
  if (properties.max_argument_bytes == 0) properties.max_argument_bytes = kLeastArgumentBytes;
  Options::get().restrict(properties);
  return OB_OK;
}

ob_status device_open(uint32_t index, ob_device* device) {
  std::lock_guard<std::mutex> lock(opened_mutex());
  for (const auto& known : opened()) {
    if (known->index == index) *device = known.get();
    if (known->index == index) return OB_OK;
  }
  auto made = std::make_unique<ob_device_t>();
  made->index = index;
  ob_status status = pass(inner->device_open(index, &made->inner));
  if (status == OB_OK) status = read_properties(made->inner, made->properties);
  if (status != OB_OK) return status;
  made->memory = std::make_shared<Memory>(*inner, made->inner, made->properties);
  *device = made.get();
  opened().push_back(std::move(made));
  return OB_OK;
}

ob_status device_reset(ob_device device, ob_device* fresh) {
  std::lock_guard<std::mutex> lock(opened_mutex());
  const auto known =
      std::find_if(opened().begin(), opened().end(), [&](const auto& each) { return each.get() == device; });
  if (known == opened().end()) return violation("device_reset of a device that was reset before");
  auto made = std::make_unique<ob_device_t>();
  made->index = device->index;
  made->inner = device->inner;
  made->properties = device->properties;
  made->memory = device->memory;
  device->lost = device->given_up = true;
  Queue::look_again();
  const ob_status status = device->memory->free_all();
  if (status != OB_OK) return status;
  known->release();  // for ever: its handles are known
  *fresh = made.get();
  *known = std::move(made);
  return OB_OK;
}

bool has_sensors() {
  return inner->struct_size >= offsetof(ob_driver, device_sensors) + sizeof(inner->device_sensors) &&
         inner->device_sensors != nullptr;
}

/// What the wrapped device's say.
ob_status device_sensors(ob_device device, ob_sensors* sensors) {
  if (const ob_status status = check_device(device); status != OB_OK) return status;
  const size_t size = std::min(sensors->struct_size, sizeof(*sensors));
  for (size_t place = offsetof(ob_sensors, memory_used); place < size; place += sizeof(int64_t)) {
    int64_t field = 0;
    std::memcpy(&field, reinterpret_cast<const char*>(sensors) + place, sizeof(field));
    if (field != OB_NOT_KNOWN) return violation("device_sensors with a field that is not OB_NOT_KNOWN");
  }
  return pass(inner->device_sensors(device->inner, sensors));
}

ob_status device_properties(ob_device device, ob_device_properties* properties) {
  const size_t size = std::min(properties->struct_size, sizeof(*properties));
  const size_t asked = properties->struct_size;
  std::memcpy(properties, &device->properties, size);
  properties->struct_size = asked;
  return OB_OK;
}

// ---- memory ----

ob_status memory_alloc(ob_device device, uint64_t bytes, ob_ptr* ptr) {
  const ob_status status = check_device(device);
  return status == OB_OK ? device->memory->alloc(bytes, ptr) : status;
}

ob_status memory_free(ob_device device, ob_ptr ptr) {
  return device->given_up ? lost_status() : device->memory->free(ptr);
}

ob_status memory_info(ob_device device, uint64_t* free_bytes, uint64_t* total_bytes) {
  *total_bytes = device->properties.total_memory;
  *free_bytes = *total_bytes - device->memory->used();
  return check_device(device);
}

std::mutex& pinned_mutex() {
  static auto* const instance = new std::mutex;
  return *instance;
}

std::map<void*, uint64_t>& pinned() {
  static auto* const instance = new std::map<void*, uint64_t>;
  return *instance;
}

/// Whole pages: once they are given back, using them faults.
ob_status host_alloc(ob_device device, uint64_t bytes, void** ptr) {
  if (const ob_status status = check_device(device); status != OB_OK) return status;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return fail(OB_OUT_OF_MEMORY, "the host has no memory left");
  std::lock_guard<std::mutex> lock(pinned_mutex());
  pinned()[memory] = bytes;
  *ptr = memory;
  return OB_OK;
}

ob_status host_free(ob_device, void* ptr) {
  std::lock_guard<std::mutex> lock(pinned_mutex());
  const auto found = pinned().find(ptr);
  if (found == pinned().end()) return violation("host_free of memory that host_alloc did not make");
  if (HostMemory::in_use(reinterpret_cast<uint64_t>(ptr), found->second)) {
    return violation("host_free of memory that a queued copy still uses");
  }
  munmap(ptr, found->second);
  pinned().erase(found);
  return OB_OK;
}

// ---- streams and events ----

ob_status stream_create(ob_device device, ob_stream* stream) {
  if (const ob_status status = check_device(device); status != OB_OK) return status;
  static std::atomic<uint64_t> number{0};
  auto made = std::make_unique<ob_stream_t>();
  made->device = device;
  const ob_status status = pass(inner->stream_create(device->inner, &made->inner));
  if (status != OB_OK) return status;
  made->queue = std::make_unique<Queue>(++number, device->given_up);
  handles<ob_stream_t>().add(made.get());
  *stream = made.release();
  return OB_OK;
}

ob_status stream_destroy(ob_stream stream) {
  if (!handles<ob_stream_t>().remove(stream)) return violation("stream_destroy of a stream that does not exist");
  stream->queue = nullptr;
  const ob_status status = pass(inner->stream_destroy(stream->inner));
  delete stream;
  return status;
}

ob_status stream_wait(ob_stream stream, int blocking) {
  const ob_status status = check_stream(stream);
  if (status != OB_OK) return status;
  const ob_status waited = stream->queue->wait(blocking != 0, stream->device->lost);
  return stream->device->lost ? lost_status() : waited;
}

ob_status stream_wait_event(ob_stream stream, ob_event event) {
  ob_status status = check_stream(stream);
  if (status == OB_OK) status = check_handle(event, "event");
  if (status != OB_OK) return status;
  if (const std::shared_ptr<Point> point = event->recorded()) stream->queue->wait_for(point);
  return OB_OK;
}

ob_status event_create(ob_device device, ob_event* event) {
  if (const ob_status status = check_device(device); status != OB_OK) return status;
  *event = new ob_event_t{};
  (*event)->device = device;
  handles<ob_event_t>().add(*event);
  return OB_OK;
}

ob_status event_destroy(ob_event event) {
  if (!handles<ob_event_t>().remove(event)) return violation("event_destroy of an event that does not exist");
  delete event;
  return OB_OK;
}

ob_status event_record(ob_event event, ob_stream stream) {
  ob_status status = check_stream(stream);
  if (status == OB_OK) status = check_handle(event, "event");
  if (status != OB_OK) return status;
  const auto point = std::make_shared<Point>();
  {
    std::lock_guard<std::mutex> lock(event->mutex);
    event->point = point;
  }
  stream->queue->record(point);
  return OB_OK;
}

ob_status event_wait(ob_event event, int blocking) {
  const ob_status status = check_handle(event, "event");
  if (status != OB_OK) return status;
  const std::shared_ptr<Point> point = event->recorded();
  if (point == nullptr) return OB_OK;
  if (blocking != 0) point->wait();
  return event->device->lost ? lost_status() : point->status();
}

ob_status event_elapsed(ob_event start, ob_event end, int64_t* nanoseconds) {
  ob_status status = check_handle(start, "event");
  if (status == OB_OK) status = check_handle(end, "event");
  if (status != OB_OK) return status;
  const std::shared_ptr<Point> from = start->recorded(), to = end->recorded();
  if (from == nullptr || to == nullptr) return fail(OB_INVALID_ARGUMENT, "an event was not recorded");
  if (from->time() < 0 || to->time() < 0) return fail(OB_INVALID_ARGUMENT, "an event was not reached");
  *nanoseconds = to->time() - from->time();
  return OB_OK;
}

// ---- data movement ----

/// Waits for what the wrapped driver was just given: only the queue's thread uses its stream.
ob_status finish(ob_stream stream, ob_status submitted) {
  if (submitted != OB_OK) return pass(submitted);
  return pass(inner->stream_wait(stream->inner, 1));
}

/// Nothing is inside an allocation of a device that was reset.
ob_status outside(ob_device device, const char* what, uint64_t address, uint64_t bytes) {
  if (device->given_up) return lost_status();
  return violation(std::string(what) + " " + std::to_string(bytes) + " bytes at " + std::to_string(address) +
                   ", which are not inside an allocation");
}

ob_status copy_in(ob_stream stream, uint64_t dst, uint64_t src, uint64_t bytes) {
  auto target = std::make_shared<BlockUse>(stream->device->memory->use(dst, bytes));
  if (!*target) return outside(stream->device, "a copy to", dst, bytes);
  const auto source = std::make_shared<HostMemory>(src, bytes, /*written=*/false);
  stream->queue->put([=] {
    std::vector<char> read;
    const ob_status status = source->read(read);
    if (status != OB_OK) return status;
    return finish(stream, inner->copy(stream->inner, OB_HOST_TO_DEVICE, target->inner(),
                                      reinterpret_cast<uint64_t>(read.data()), bytes));
  });
  return OB_OK;
}

/// Arrives in two parts: who looks too early may see half of it.
ob_status copy_out(ob_stream stream, uint64_t dst, uint64_t src, uint64_t bytes) {
  auto source = std::make_shared<BlockUse>(stream->device->memory->use(src, bytes));
  if (!*source) return outside(stream->device, "a copy from", src, bytes);
  const auto target = std::make_shared<HostMemory>(dst, bytes, /*written=*/true);
  stream->queue->put([=] {
    std::vector<char> old;
    ob_status status = target->read(old);
    if (status != OB_OK) return status;
    std::vector<char> read(bytes);
    status = finish(stream, inner->copy(stream->inner, OB_DEVICE_TO_HOST, reinterpret_cast<uint64_t>(read.data()),
                                        source->inner(), bytes));
    const uint64_t half = bytes / 2;
    if (status == OB_OK) status = target->write(0, read.data(), half);
    std::this_thread::yield();
    if (status == OB_OK) status = target->write(half, read.data() + half, bytes - half);
    return status;
  });
  return OB_OK;
}

ob_status copy_within(ob_stream stream, uint64_t dst, uint64_t src, uint64_t bytes) {
  auto source = std::make_shared<BlockUse>(stream->device->memory->use(src, bytes));
  if (!*source) return outside(stream->device, "a copy from", src, bytes);
  auto target = std::make_shared<BlockUse>(stream->device->memory->use(dst, bytes));
  if (!*target) return outside(stream->device, "a copy to", dst, bytes);
  stream->queue->put([=] {
    return finish(stream, inner->copy(stream->inner, OB_DEVICE_TO_DEVICE, target->inner(), source->inner(), bytes));
  });
  return OB_OK;
}

ob_status copy(ob_stream stream, ob_copy_kind kind, uint64_t dst, uint64_t src, uint64_t bytes) {
  const ob_status status = check_stream(stream);
  if (status != OB_OK || bytes == 0) return status;
  if (kind == OB_HOST_TO_DEVICE) return copy_in(stream, dst, src, bytes);
  return kind == OB_DEVICE_TO_HOST ? copy_out(stream, dst, src, bytes) : copy_within(stream, dst, src, bytes);
}

ob_status fill(ob_stream stream, ob_ptr dst, const void* pattern, uint32_t pattern_size, uint64_t bytes) {
  const ob_status status = check_stream(stream);
  if (status != OB_OK || bytes == 0) return status;
  if (pattern_size == 0 || pattern_size > 16 || (pattern_size & (pattern_size - 1)) != 0) {
    return violation("a fill with a pattern of " + std::to_string(pattern_size) + " bytes");
  }
  if (dst % pattern_size != 0 || bytes % pattern_size != 0) return violation("a fill that is not of whole patterns");
  auto target = std::make_shared<BlockUse>(stream->device->memory->use(dst, bytes));
  if (!*target) return outside(stream->device, "a fill of", dst, bytes);
  const std::string copied(static_cast<const char*>(pattern), pattern_size);
  stream->queue->put(
      [=] { return finish(stream, inner->fill(stream->inner, target->inner(), copied.data(), pattern_size, bytes)); });
  return OB_OK;
}

ob_status copy_peer(ob_stream stream, ob_device dst_device, ob_ptr dst, ob_device src_device, ob_ptr src,
                    uint64_t bytes) {
  ob_status status = check_stream(stream);
  if (status == OB_OK) status = check_device(dst_device);
  if (status != OB_OK || bytes == 0) return status;
  if (stream->device != src_device) return violation("copy_peer on a stream that is not of the source's device");
  auto source = std::make_shared<BlockUse>(src_device->memory->use(src, bytes));
  if (!*source) return outside(src_device, "a copy from", src, bytes);
  auto target = std::make_shared<BlockUse>(dst_device->memory->use(dst, bytes));
  if (!*target) return outside(dst_device, "a copy to", dst, bytes);
  stream->queue->put([=] {
    std::vector<char> between(bytes);
    const auto host = reinterpret_cast<uint64_t>(between.data());
    const ob_status read = finish(stream, inner->copy(stream->inner, OB_DEVICE_TO_HOST, host, source->inner(), bytes));
    return read != OB_OK ? read : dst_device->memory->service().copy(OB_HOST_TO_DEVICE, target->inner(), host, bytes);
  });
  return OB_OK;
}

// ---- programs ----

ob_status own(ob_device device, const std::function<ob_status(ob_program*)>& make, ob_program* program) {
  auto made = std::make_unique<ob_program_t>();
  made->device = device;
  made->inner = std::make_shared<InnerProgram>();
  const ob_status status = pass(make(&made->inner->program));
  if (status != OB_OK) return status;
  handles<ob_program_t>().add(made.get());
  *program = made.release();
  return OB_OK;
}

ob_status program_build(ob_device device, const char* source, const char* options, ob_program* program) {
  if (const ob_status status = check_device(device); status != OB_OK) return status;
  if (options == nullptr) return violation("program_build with options = NULL");
  std::string restricted = source;
  if (device->properties.has_fp64 == 0) {
    restricted = without_doubles(source);
    if (uses_doubles(restricted)) {
      return violation("a program with double for a device without has_fp64");
    }
  }
  if (device->properties.has_int64_atomics == 0 && uses_long_atomics(restricted)) {
    return violation("a program with atomic functions of 64 bits for a device without has_int64_atomics");
  }
  return own(
      device, [&](ob_program* made) { return inner->program_build(device->inner, restricted.c_str(), options, made); },
      program);
}

ob_status program_load(ob_device device, const void* binary, size_t bytes, ob_program* program) {
  if (const ob_status status = check_device(device); status != OB_OK) return status;
  return own(
      device, [&](ob_program* made) { return inner->program_load(device->inner, binary, bytes, made); }, program);
}

ob_status program_binary(ob_program program, void* binary, size_t* bytes) {
  const ob_status status = check_handle(program, "program");
  return status == OB_OK ? pass(inner->program_binary(program->inner->program, binary, bytes)) : status;
}

ob_status program_release(ob_program program) {
  if (!handles<ob_program_t>().remove(program)) return violation("program_release of a program that does not exist");
  for (const auto& [name, kernel] : program->kernels) handles<ob_kernel_t>().remove(kernel.get());
  delete program;
  return OB_OK;
}

/// What the kernel needs, as far as the wrapped driver can tell.
ob_status read_needs(ob_kernel_t& kernel) {
  const ob_device_properties& limits = kernel.device->properties;
  ob_kernel_properties needs{sizeof(needs), limits.max_work_group_size, 0};
  const bool known = inner->struct_size >= offsetof(ob_driver, kernel_properties) + sizeof(inner->kernel_properties) &&
                     inner->kernel_properties != nullptr;
  const ob_status status = known ? pass(inner->kernel_properties(kernel.inner, &needs)) : OB_OK;
  kernel.max_work_group_size = std::min(needs.max_work_group_size, limits.max_work_group_size);
  kernel.local_memory = needs.local_memory;
  return status;
}

ob_status kernel_get(ob_program program, const char* name, ob_kernel* kernel) {
  ob_status status = check_handle(program, "program");
  if (status != OB_OK) return status;
  std::lock_guard<std::mutex> lock(program->mutex);
  const auto known = program->kernels.find(name);
  if (known != program->kernels.end()) {
    *kernel = known->second.get();
    return OB_OK;
  }
  auto made = std::make_unique<ob_kernel_t>();
  made->device = program->device;
  made->program = program->inner;
  made->name = name;
  status = pass(inner->kernel_get(program->inner->program, name, &made->inner));
  if (status == OB_OK) status = read_needs(*made);
  if (status != OB_OK) return status;
  handles<ob_kernel_t>().add(made.get());
  *kernel = made.get();
  program->kernels.emplace(name, std::move(made));
  return OB_OK;
}

ob_status kernel_properties(ob_kernel kernel, ob_kernel_properties* properties) {
  const ob_status status = check_handle(kernel, "kernel");
  if (status != OB_OK) return status;
  const ob_kernel_properties needs{properties->struct_size, kernel->max_work_group_size, kernel->local_memory};
  std::memcpy(properties, &needs, std::min(properties->struct_size, sizeof(needs)));
  return OB_OK;
}

// ---- launches ----

ob_status too_much(const ob_kernel_t& kernel, const char* what, uint64_t wanted, uint64_t limit) {
  return violation("a launch of " + kernel.name + " with " + what + " " + std::to_string(wanted) + ", of at most " +
                   std::to_string(limit));
}

ob_status check_range(const ob_kernel_t& kernel, const uint64_t global[3], const uint32_t local[3]) {
  const uint64_t group = uint64_t{local[0]} * local[1] * local[2];
  for (int i = 0; i < 3; ++i) {
    if (global[i] == 0) return violation("a launch of " + kernel.name + " without work-items");
    if (local[0] != 0 && (local[i] == 0 || global[i] % local[i] != 0)) {
      return violation("a launch of " + kernel.name + " of work-items that are no multiple of the work-group");
    }
  }
  if (group > kernel.max_work_group_size) {
    return too_much(kernel, "a work-group of", group, kernel.max_work_group_size);
  }
  const uint64_t local_memory = kernel.device->properties.local_memory;
  if (kernel.local_memory > local_memory) return too_much(kernel, "local memory of", kernel.local_memory, local_memory);
  return OB_OK;
}

uint64_t size_of(const ob_argument& argument) { return argument.is_pointer != 0 ? sizeof(ob_ptr) : argument.size; }

/// The launch, if it keeps to the rules. Of a graph, memory is looked for when the graph is launched.
ob_status read_launch(const ob_launch& given, std::shared_ptr<Launch>& launch) {
  const ob_status status = check_handle(given.kernel, "kernel");
  if (status != OB_OK) return status;
  const ob_kernel_t& kernel = *given.kernel;
  const ob_status fits = check_range(kernel, given.global, given.local);
  if (fits != OB_OK) return fits;
  launch = std::make_shared<Launch>();
  launch->program = kernel.program;
  launch->kernel = kernel.inner;
  std::copy_n(given.global, 3, launch->global);
  std::copy_n(given.local, 3, launch->local);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < given.argument_count; ++i) {
    const ob_argument& argument = given.arguments[i];
    if (size_of(argument) == 0) return violation("a launch of " + kernel.name + " with an argument of 0 bytes");
    const auto* value = static_cast<const char*>(argument.value);
    launch->is_pointer.push_back(argument.is_pointer != 0);
    launch->values.emplace_back(value, value + size_of(argument));
    bytes += size_of(argument);
  }
  const uint64_t limit = kernel.device->properties.max_argument_bytes;
  return bytes > limit ? too_much(kernel, "bytes of arguments:", bytes, limit) : OB_OK;
}

/// What a launch needs when its turn comes: the wrapped driver's addresses, and that the memory is still there.
struct Resolved {
  std::shared_ptr<Launch> launch;
  std::vector<std::vector<char>> values;
  std::vector<BlockUse> uses;
};

ob_status resolve(ob_device device, const std::shared_ptr<Launch>& launch, Resolved& resolved) {
  resolved.launch = launch;
  resolved.values = launch->values;
  for (size_t i = 0; i < resolved.values.size(); ++i) {
    ob_ptr address = 0;
    if (!launch->is_pointer[i]) continue;
    std::memcpy(&address, resolved.values[i].data(), sizeof(address));
    if (address == 0) continue;
    BlockUse use = device->memory->use(address, 0);
    if (!use) return outside(device, ("argument " + std::to_string(i) + " of a launch:").c_str(), address, 0);
    address = use.inner();
    std::memcpy(resolved.values[i].data(), &address, sizeof(address));
    resolved.uses.push_back(std::move(use));
  }
  return OB_OK;
}

ob_status run(ob_stream stream, const Resolved& resolved) {
  const Launch& launch = *resolved.launch;
  std::vector<ob_argument> arguments;
  for (size_t i = 0; i < resolved.values.size(); ++i) {
    const std::vector<char>& value = resolved.values[i];
    arguments.push_back({launch.is_pointer[i] ? 1u : 0u, static_cast<uint32_t>(value.size()), value.data()});
  }
  return finish(stream, inner->launch(stream->inner, launch.kernel, launch.global, launch.local, arguments.data(),
                                      static_cast<uint32_t>(arguments.size())));
}

using Batch = std::vector<Resolved>;

/// Puts launches in the order given; all run, and the status is that of the last that failed. Lets `held` go then.
void put(ob_stream stream, std::shared_ptr<Batch> batch, std::shared_ptr<const void> held = nullptr) {
  stream->queue->put([stream, batch = std::move(batch), held = std::move(held)] {
    ob_status status = OB_OK;
    for (const Resolved& each : *batch) {
      const ob_status ran = run(stream, each);
      if (ran != OB_OK) status = ran;
    }
    return status;
  });
}

ob_status launch_one(ob_stream stream, const ob_launch& given, Batch& batch) {
  std::shared_ptr<Launch> launch;
  const ob_status status = read_launch(given, launch);
  if (status != OB_OK) return status;
  Resolved resolved;
  const ob_status found = resolve(stream->device, launch, resolved);
  if (found != OB_OK) return found;
  if (stream->recording != nullptr) {
    stream->recording->push_back(launch);
  } else {
    batch.push_back(std::move(resolved));
  }
  return OB_OK;
}

ob_status launch(ob_stream stream, ob_kernel kernel, const uint64_t global[3], const uint32_t local[3],
                 const ob_argument* arguments, uint32_t count) {
  ob_status status = check_handle(stream, "stream");
  if (status != OB_OK) return status;
  const ob_launch given{kernel, {global[0], global[1], global[2]}, {local[0], local[1], local[2]}, count, arguments};
  const auto batch = std::make_shared<Batch>();
  status = launch_one(stream, given, *batch);
  if (status == OB_OK && !batch->empty()) put(stream, batch);
  return status;
}

/// In an order that nobody expects.
ob_status launch_batch(ob_stream stream, const ob_launch* launches, uint32_t count) {
  ob_status status = check_stream(stream);
  if (status != OB_OK) return status;
  static std::mutex mutex;
  static Delay chance(0);
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  {
    std::lock_guard<std::mutex> lock(mutex);
    for (uint32_t i = count; i > 1; --i) std::swap(order[i - 1], order[chance.next() % i]);
  }
  const auto batch = std::make_shared<Batch>();
  for (const uint32_t i : order) {
    const ob_status launched = launch_one(stream, launches[i], *batch);
    if (launched != OB_OK) status = launched;
  }
  if (!batch->empty()) put(stream, batch);
  return status;
}

// ---- graphs ----

ob_status capture_begin(ob_stream stream) {
  const ob_status status = check_stream(stream);
  if (status != OB_OK) return status;
  if (!Options::get().graphs) return fail(OB_UNSUPPORTED, "OUTBOARD_STRICT_GRAPHS=0");
  stream->recording = std::make_unique<std::vector<std::shared_ptr<Launch>>>();
  return OB_OK;
}

ob_status capture_end(ob_stream stream, void** graph) {
  *graph = nullptr;
  if (!handles<ob_stream_t>().has(stream) || stream->recording == nullptr) {
    return violation("capture_end on a stream that records no graph");
  }
  const auto recorded = std::move(stream->recording);
  if (stream->device->lost) return lost_status();
  auto* made = new Graph{};
  made->device = stream->device;
  made->launches = *recorded;
  handles<Graph>().add(made);
  *graph = made;
  return OB_OK;
}

ob_status graph_launch(ob_stream stream, void* given) {
  auto* graph = static_cast<Graph*>(given);
  ob_status status = check_stream(stream);
  if (status == OB_OK) status = check_handle(graph, "graph");
  if (status != OB_OK) return status;
  if (graph->device != stream->device)
    return violation("graph_launch on another device than the graph was recorded on");
  const auto batch = std::make_shared<Batch>(graph->launches.size());
  for (size_t i = 0; i < graph->launches.size(); ++i) {
    status = resolve(graph->device, graph->launches[i], (*batch)[i]);
    if (status != OB_OK) return status;
  }
  ++graph->outstanding;
  put(stream, batch, std::shared_ptr<Graph>(graph, [](Graph* running) { --running->outstanding; }));
  return OB_OK;
}

ob_status graph_destroy(void* given) {
  auto* graph = static_cast<Graph*>(given);
  if (!handles<Graph>().has(graph)) return violation("graph_destroy of a graph that does not exist");
  if (graph->outstanding != 0) return violation("graph_destroy of a graph that is still running");
  handles<Graph>().remove(graph);
  delete graph;
  return OB_OK;
}

// ---- library functions ----

ob_status library_find(ob_device device, const char* name, const ob_operand* operands, uint32_t count,
                       ob_function* function) {
  if (const ob_status status = check_device(device); status != OB_OK) return status;
  if (!has_library()) return fail(OB_UNSUPPORTED, "the wrapped driver has no library");
  auto found = std::make_unique<ob_function_t>(
      ob_function_t{device, std::make_shared<InnerFunction>(), name, Operands(operands, count)});
  if (const std::string problem = found->like->problem(); !problem.empty()) {
    return violation("library_find of " + found->name + ": " + problem);
  }
  const ob_status status = pass(inner->library_find(device->inner, name, operands, count, &found->inner->function));
  if (status != OB_OK) return status;
  handles<ob_function_t>().add(found.get());
  *function = found.release();  // lives as long as the device
  return OB_OK;
}

/// What a call needs when its turn comes.
struct LibraryCall {
  std::shared_ptr<InnerFunction> function;
  Operands operands;
  std::vector<BlockUse> uses;
};

ob_status library_call(ob_stream stream, ob_function function, const ob_operand* operands, uint32_t count) {
  ob_status status = check_stream(stream);
  if (status == OB_OK) status = check_handle(function, "library function");
  if (status != OB_OK) return status;
  if (function->device != stream->device) return violation("library_call of another device's function");
  const auto call = std::make_shared<LibraryCall>(LibraryCall{function->inner, Operands(operands, count), {}});
  std::string problem = call->operands.problem();
  if (problem.empty() && function->like) problem = call->operands.difference(*function->like);
  if (problem.empty() && function->inner->loaded) problem = call->operands.overlap();
  if (!problem.empty()) return violation("library_call of " + function->name + ": " + problem);
  for (ob_operand& operand : call->operands.list()) {
    const uint64_t bytes = Operands::bytes(operand);
    if (operand.kind != OB_OPERAND_TENSOR || operand.data == 0) continue;
    BlockUse use = stream->device->memory->use(operand.data, bytes);
    if (!use) return outside(stream->device, ("an operand of " + function->name + ":").c_str(), operand.data, bytes);
    operand.data = use.inner();
    call->uses.push_back(std::move(use));
  }
  stream->queue->put([stream, call] {
    const std::vector<ob_operand>& given = call->operands.list();
    return finish(stream, inner->library_call(stream->inner, call->function->function, given.data(),
                                              static_cast<uint32_t>(given.size())));
  });
  return OB_OK;
}

// ---- executables ----

bool loads_functions() {
  return inner->struct_size >= offsetof(ob_driver, function_release) + sizeof(inner->function_release) &&
         inner->function_load != nullptr;
}

/// The bytes are another's when the call is over.
ob_status function_load(ob_device device, const void* bytes, size_t size, ob_function* function) {
  if (const ob_status status = check_device(device); status != OB_OK) return status;
  if (size == 0) return violation("function_load of no bytes");
  std::string copied(static_cast<const char*>(bytes), size);
  auto made = std::make_unique<ob_function_t>(
      ob_function_t{device, std::make_shared<InnerFunction>(), "an executable", std::nullopt});
  const ob_status status = pass(inner->function_load(device->inner, copied.data(), size, &made->inner->function));
  std::fill(copied.begin(), copied.end(), '\xff');
  if (status != OB_OK) return status;
  made->inner->loaded = true;
  handles<ob_function_t>().add(made.get());
  *function = made.release();
  return OB_OK;
}

ob_status function_release(ob_function function) {
  if (!handles<ob_function_t>().has(function)) return violation("function_release of a function that does not exist");
  if (!function->inner->loaded) return violation("function_release of a function that was not loaded");
  handles<ob_function_t>().remove(function);
  delete function;
  return OB_OK;
}

// ---- collectives ----

bool has_collectives() {
  return inner->struct_size >= offsetof(ob_driver, collective) + sizeof(inner->collective) &&
         inner->collective != nullptr;
}

bool joins_without_waiting() {
  return inner->struct_size >= offsetof(ob_driver, communicator_joined) + sizeof(inner->communicator_joined) &&
         inner->communicator_joined != nullptr;
}

ob_status collective_supported(ob_device device, uint32_t kind, uint32_t dtype, uint32_t reduction) {
  if (const ob_status status = check_device(device); status != OB_OK) return status;
  if (!has_collectives()) return fail(OB_UNSUPPORTED, "the wrapped driver has no collectives");
  return pass(inner->collective_supported(device->inner, kind, dtype, reduction));
}

ob_status communicator_id(ob_device device, void* id) {
  if (const ob_status status = check_device(device); status != OB_OK) return status;
  if (!has_collectives()) return violation("communicator_id where collective_supported said no");
  return pass(inner->communicator_id(device->inner, id));
}

ob_status communicator_create(ob_device device, const void* id, uint32_t rank, uint32_t size, uint64_t milliseconds,
                              ob_communicator* communicator) {
  if (const ob_status status = check_device(device); status != OB_OK) return status;
  if (!has_collectives()) return violation("communicator_create where collective_supported said no");
  if (rank >= size) return violation("communicator_create with a rank that is not below the size");
  if (milliseconds == 0 && !joins_without_waiting()) {
    return violation("communicator_create with 0 milliseconds where there is no communicator_joined");
  }
  auto made = std::make_unique<ob_communicator_t>();
  made->device = device;
  made->rank = rank;
  made->size = size;
  made->joined = milliseconds != 0;
  const ob_status status = inner->communicator_create(device->inner, id, rank, size, milliseconds, &made->inner);
  if (status != OB_OK) return fail(status, inner->last_error());
  handles<ob_communicator_t>().add(made.get());
  *communicator = made.release();
  return OB_OK;
}

/// Says at first that members are missing, whether they are or not.
ob_status communicator_joined(ob_communicator communicator) {
  if (!handles<ob_communicator_t>().has(communicator)) return violation("a communicator that does not exist");
  const ob_status status = inner->communicator_joined(communicator->inner);
  if (status == OB_OK && !communicator->asked.exchange(true)) return OB_NOT_READY;
  if (status == OB_OK) communicator->joined = true;
  return pass(status);
}

ob_status communicator_destroy(ob_communicator communicator) {
  if (!handles<ob_communicator_t>().remove(communicator)) {
    return violation("communicator_destroy of a communicator that does not exist");
  }
  if (communicator->pending != 0 && !communicator->aborted) {
    return violation("communicator_destroy while collectives are queued");
  }
  if (!communicator->joined && !communicator->aborted) {
    return violation("communicator_destroy while members are joining");
  }
  const std::unique_ptr<ob_communicator_t> destroyed(communicator);
  while (communicator->pending != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // they fail soon
  return pass(inner->communicator_destroy(communicator->inner));
}

ob_status communicator_abort(ob_communicator communicator) {
  if (!handles<ob_communicator_t>().has(communicator)) return violation("a communicator that does not exist");
  if (communicator->aborted.exchange(true)) return violation("communicator_abort for the second time");
  return pass(inner->communicator_abort(communicator->inner));
}

/// What a collective needs when its turn comes.
struct QueuedCollective {
  QueuedCollective(ob_communicator communicator_, Collective what_)
      : communicator(communicator_), what(std::move(what_)) {
    ++communicator->pending;
  }
  ~QueuedCollective() { --communicator->pending; }
  QueuedCollective(const QueuedCollective&) = delete;
  QueuedCollective& operator=(const QueuedCollective&) = delete;

  ob_communicator communicator;
  Collective what;
};

ob_status collective(ob_stream stream, ob_communicator communicator, const ob_collective* given) {
  ob_status status = check_stream(stream);
  if (status == OB_OK) status = check_handle(communicator, "communicator");
  if (status != OB_OK) return status;
  if (communicator->device != stream->device) return violation("collective with another device's communicator");
  if (communicator->aborted) return fail(OB_INTERNAL, "the communicator was aborted");
  if (!communicator->joined) return violation("collective before communicator_joined said OB_OK");
  const auto queued =
      std::make_shared<QueuedCollective>(communicator, Collective(*given, communicator->rank, communicator->size));
  if (const std::string problem = queued->what.problem(); !problem.empty()) {
    return violation("a collective that " + problem);
  }
  status = collective_supported(stream->device, given->kind, given->dtype, given->reduction);
  if (status != OB_OK) return status == OB_UNSUPPORTED ? violation("a collective that is not supported") : status;
  const uint64_t read = queued->what.source_bytes(), written = queued->what.target_bytes();
  const auto source =
      std::make_shared<BlockUse>(read == 0 ? BlockUse() : stream->device->memory->use(given->source, read));
  if (read != 0 && !*source) return outside(stream->device, "a collective that reads", given->source, read);
  const auto target =
      std::make_shared<BlockUse>(written == 0 ? BlockUse() : stream->device->memory->use(given->target, written));
  if (written != 0 && !*target) return outside(stream->device, "a collective that writes", given->target, written);
  stream->queue->put([stream, queued, source, target] {
    const ob_collective placed = queued->what.at(*source ? source->inner() : 0, *target ? target->inner() : 0);
    return finish(stream, inner->collective(stream->inner, queued->communicator->inner, &placed));
  });
  return OB_OK;
}

// ---- the table ----

ob_driver make_driver() {
  using namespace outboard::common::absent;
  ob_driver driver = outboard::common::new_table("strict");
#define OB_FUNCTION(name) outboard::common::offer<name>(driver.name);
#include "outboard/functions.def"
  if (!joins_without_waiting()) driver.communicator_joined = nullptr;
  if (!has_sensors()) driver.device_sensors = nullptr;
  if (!loads_functions()) driver.function_load = nullptr, driver.function_release = nullptr;
  return driver;
}

}  // namespace

InnerProgram::~InnerProgram() {
  if (program != nullptr) inner->program_release(program);
}

InnerFunction::~InnerFunction() {
  if (loaded) inner->function_release(function);
}

extern "C" {

__attribute__((visibility("default"))) const ob_driver* outboard_driver(void) {
  static const ob_driver* const driver = [] {
    inner = outboard::common::load_inner(Options::get().driver.c_str());
    return inner == nullptr ? nullptr : new ob_driver(make_driver());
  }();
  return driver;
}

/// How often the contract was broken so far.
__attribute__((visibility("default"))) uint64_t outboard_strict_violations(void) { return violations(); }

/// While held, nothing that is queued begins.
__attribute__((visibility("default"))) void outboard_strict_hold(int held) { Queue::hold(held != 0); }

/// The nth piece of work from now on that begins fails with an ob_status, after its call returned. nth = 0 cancels.
__attribute__((visibility("default"))) void outboard_strict_fail_later(uint64_t nth, int status) {
  Queue::fail_command(nth, static_cast<ob_status>(status));
}

/// The device is lost from now on. What is queued runs on: it still writes to host memory.
__attribute__((visibility("default"))) void outboard_strict_lose(uint32_t index) {
  std::lock_guard<std::mutex> lock(opened_mutex());
  for (const auto& device : opened()) {
    if (device->index == index) device->lost = true;
  }
}
}
