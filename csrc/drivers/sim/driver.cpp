// SPDX-License-Identifier: Apache-2.0
#include "outboard/driver.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/operands.h"
#include "common/table.h"
#include "sim/clock.h"
#include "sim/collectives.h"
#include "sim/graph.h"

using namespace outboard::common;

/// A simulated discrete device: memory the host is told it cannot address, a thread for each stream in use, and no
/// compiler for programs. It exercises everything above a driver that has only memory and copies, on any machine. With
/// OUTBOARD_SIM_COMPILER=1 it is hardware with a compiler for graphs (sim/graph.h), and with OUTBOARD_SIM_CHIP that
/// hardware has a clock of its own (sim/clock.h). Tests can stop a stream (outboard_sim_pause) and make moving and
/// filling take the time it would on a device (outboard_sim_pace).
struct ob_device_t {
  explicit ob_device_t(uint32_t index_) : index(index_) {}

  const uint32_t index;
  std::atomic<bool> lost{false};  // it was reset: this is what was before
  std::mutex mutex;
  std::map<ob_ptr, uint64_t> blocks;
  uint64_t used = 0;
  std::set<ob_stream> streams;
  std::vector<std::weak_ptr<outboard::sim::Members>> members;  // of its communicators
};

/// How often what waits looks whether its device is lost.
constexpr std::chrono::milliseconds kLookAgain{2};

/// What went wrong with queued work; OB_OK: nothing.
struct Failure {
  ob_status status = OB_OK;
  std::string text;
};

/// One recording of an event: streams that wait for it keep it, whatever happens to the event.
struct Point {
  explicit Point(int64_t modelled_ = 0) : modelled(modelled_) {}

  /// `failed`: what went wrong before it that nobody has been told of.
  void reach(const Failure& failed = {}) {
    std::lock_guard<std::mutex> lock(mutex);
    failure = failed;
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    reached.notify_all();
  }

  /// Until it is reached, or `device`, which waits, is lost.
  void wait(ob_device device) {
    std::unique_lock<std::mutex> lock(mutex);
    while (nanoseconds < 0 && !device->lost) reached.wait_for(lock, kLookAgain);
  }

  int64_t time() {
    std::lock_guard<std::mutex> lock(mutex);
    return nanoseconds;
  }

  std::mutex mutex;
  std::condition_variable reached;
  const int64_t modelled;    // when the chip is there
  int64_t nanoseconds = -1;  // not reached
  Failure failure;           // constant once it is reached
};

/// In-order commands and the thread that runs them.
struct ob_stream_t {
  explicit ob_stream_t(ob_device device_) : device(device_) {}

  /// Of what is not `always` done, that of a lost device is left out. A stream that has ended does it at once.
  void put(std::function<void()> command, bool always = false) {
    std::unique_lock<std::mutex> lock(mutex);
    if (ending) {
      lock.unlock();
      if (always || !device->lost) command();
      return;
    }
    if (!worker.joinable()) worker = std::thread([this] { work(); });
    commands.push_back({std::move(command), always});
    ++put_count;
    changed.notify_all();
  }

  bool idle() {
    std::lock_guard<std::mutex> lock(mutex);
    return done_count == put_count;
  }

  void synchronize() {
    std::unique_lock<std::mutex> lock(mutex);
    const uint64_t target = put_count;
    changed.wait(lock, [&] { return done_count >= target; });
  }

  /// Work of the stream went wrong.
  void fail(const Failure& found) {
    std::lock_guard<std::mutex> lock(mutex);
    if (failure.status == OB_OK) failure = found;
  }

  Failure told() {
    std::lock_guard<std::mutex> lock(mutex);
    return failure;
  }

  /// The same, once.
  Failure tell() {
    std::lock_guard<std::mutex> lock(mutex);
    return std::exchange(failure, {});
  }

  void end() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      ending = true;
      changed.notify_all();
    }
    if (worker.joinable()) worker.join();
  }

  void work() {
    pthread_setname_np(pthread_self(), "sim stream");
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return ending || !commands.empty(); });
      if (commands.empty()) return;
      const Command command = std::move(commands.front());
      commands.pop_front();
      lock.unlock();
      if (command.always || !device->lost) command.run();
      lock.lock();
      ++done_count;
      changed.notify_all();
    }
  }

  struct Command {
    std::function<void()> run;
    bool always;
  };

  ob_device device;
  std::atomic<int64_t> modelled{0};  // when the chip has done what was submitted
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Command> commands;
  uint64_t put_count = 0, done_count = 0;
  bool ending = false;
  Failure failure;  // of finished work, which nobody has been told of
  std::thread worker;
  std::shared_ptr<Point> pause;  // where the stream was told to stop; used by one thread at a time
};

struct ob_communicator_t {
  ob_device device;
  std::shared_ptr<outboard::sim::Members> members;
};

struct ob_event_t {
  explicit ob_event_t(ob_device device_) : device(device_) {}

  std::shared_ptr<Point> recorded() {
    std::lock_guard<std::mutex> lock(mutex);
    return point;
  }

  const ob_device device;
  std::mutex mutex;
  std::shared_ptr<Point> point;  // nullptr: never recorded
};

namespace {

constexpr uint32_t kMaximumDevices = 16;
constexpr uint64_t kMemory = uint64_t{4} << 30;
constexpr uint64_t kAlignment = 256;

/// Bytes per second between host and device, and within the device; 0: as fast as the host is.
std::atomic<uint64_t> link_speed{0}, memory_speed{0};

/// Takes as long as moving `bytes` at `speed` since `begin`.
void take_time(std::chrono::steady_clock::time_point begin, uint64_t bytes, uint64_t speed) {
  if (speed == 0) return;
  const std::chrono::duration<double> time(static_cast<double>(bytes) / static_cast<double>(speed));
  std::this_thread::sleep_until(begin + std::chrono::duration_cast<std::chrono::steady_clock::duration>(time));
}

using outboard::sim::Step;

/// The time of work that is submitted now.
void model(ob_stream stream, outboard::sim::Engine engine, double seconds, const Step& what) {
  stream->modelled = outboard::sim::model_clock().put(stream->device->index, engine, stream->modelled, seconds, what);
}

void model_copy(ob_stream stream, ob_copy_kind kind, uint64_t bytes) {
  const auto* const chip = outboard::sim::chosen_chip();
  if (chip == nullptr) return;
  if (kind == OB_DEVICE_TO_DEVICE) {
    const Step step{"copy", "uint8", 0, bytes, bytes};
    return model(stream, outboard::sim::kCompute, chip->seconds(step), step);
  }
  const bool up = kind == OB_HOST_TO_DEVICE;
  const double moved = static_cast<double>(bytes) / chip->number("host_bandwidth", INFINITY);
  model(stream, up ? outboard::sim::kUpload : outboard::sim::kDownload, chip->number("host_latency", 0) + moved,
        {up ? "upload" : "download", "uint8", 0, up ? 0 : bytes, up ? bytes : 0});
}

void model_steps(ob_stream stream, const std::vector<Step>& steps) {
  const auto* const chip = outboard::sim::chosen_chip();
  if (chip == nullptr) return;
  for (const Step& step : steps) model(stream, outboard::sim::kCompute, chip->seconds(step), step);
}

/// On a ring each member sends all of the whole but its own part, twice where it reduces and hands out.
void model_collective(ob_stream stream, uint32_t kind, uint64_t read, uint64_t written, uint32_t members) {
  const auto* const chip = outboard::sim::chosen_chip();
  if (chip == nullptr) return;
  const double messages = (kind == OB_ALL_REDUCE ? 2.0 : 1.0) * (members - 1);
  const double part = static_cast<double>(std::max(read, written)) / members;
  const double seconds = messages * (chip->number("link_latency", 0) + part / chip->number("link_bandwidth", INFINITY));
  model(stream, outboard::sim::kLink, seconds, {"collective", "uint8", 0, read, written});
}

/// The host knows now that a stream's work is done until then.
void model_wait(int64_t time) {
  if (outboard::sim::chosen_chip() != nullptr) outboard::sim::model_clock().wait_until(time);
}

void model_memory(ob_device device) {
  if (outboard::sim::chosen_chip() != nullptr) outboard::sim::model_clock().use(device->index, device->used);
}

uint64_t memory_of_device() {
  const auto* const chip = outboard::sim::chosen_chip();
  return chip == nullptr ? kMemory : static_cast<uint64_t>(chip->number("memory", double{kMemory}));
}

std::atomic<uint64_t> collectives_begun{0};

/// What executables that begin from now on do not come back from.
enum Hang : int { kNothing = 0, kOnDevice = 1, kInCall = 2 };
std::atomic<int> hang{kNothing};

void hang_while(Hang chosen, ob_device device) {
  while (hang == chosen && !device->lost) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// The status of a wait that found this.
ob_status told(const Failure& failure) { return failure.status == OB_OK ? OB_OK : fail(failure.status, failure.text); }

ob_status device_count(uint32_t* count) {
  const auto* const chip = outboard::sim::chosen_chip();
  const char* text = std::getenv("OUTBOARD_NUM_DEVICES");
  const auto made = chip == nullptr ? 1 : static_cast<long>(chip->number("devices", 1));
  const long wanted = text == nullptr ? made : std::strtol(text, nullptr, 10);
  *count = wanted < 1 ? 1 : wanted > kMaximumDevices ? kMaximumDevices : static_cast<uint32_t>(wanted);
  return OB_OK;
}

/// The devices of now; what they were before a reset is never freed.
struct {
  std::mutex mutex;
  std::array<ob_device, kMaximumDevices> devices{};
} opened;

ob_status device_open(uint32_t index, ob_device* device) {
  if (index >= kMaximumDevices) return fail(OB_INVALID_ARGUMENT, "no such simulated device");
  const std::lock_guard<std::mutex> lock(opened.mutex);
  ob_device& known = opened.devices[index];
  if (known == nullptr) known = new ob_device_t(index);
  *device = known;
  return OB_OK;
}

/// Frees all memory, once nothing runs that could use it.
void give_up(ob_device device) {
  device->lost = true;
  const std::lock_guard<std::mutex> lock(device->mutex);
  for (const auto& each : device->members) {
    if (const auto members = each.lock()) members->abort();
  }
  for (ob_stream stream : device->streams) stream->end();
  for (const auto& [address, bytes] : device->blocks) std::free(reinterpret_cast<void*>(address));
  device->blocks.clear();
  device->used = 0;
  model_memory(device);
}

ob_status device_reset(ob_device device, ob_device* fresh) {
  const std::lock_guard<std::mutex> lock(opened.mutex);
  ob_device& known = opened.devices[device->index];
  if (known != device) return fail(OB_DEVICE_LOST, "the device was reset before");
  give_up(device);
  *fresh = known = new ob_device_t(device->index);
  return OB_OK;
}

ob_status device_properties(ob_device, ob_device_properties* properties) {
  ob_device_properties p{};
  const auto* const chip = outboard::sim::chosen_chip();
  put_text(p.name, chip == nullptr ? "simulated device" : chip->name);
  std::snprintf(p.vendor, sizeof(p.vendor), "Outboard");
  std::snprintf(p.driver_version, sizeof(p.driver_version), "1");
  const char* const tile = std::getenv("OUTBOARD_SIM_TILE");
  put_text(p.cache_key, chip != nullptr   ? "sim-1 " + chip->key
                        : tile != nullptr ? std::string("sim-1 tile ") + tile
                                          : "sim-1");
  std::snprintf(p.library, sizeof(p.library), "simulated library");
  const char* compiler = std::getenv("OUTBOARD_SIM_COMPILER");
  if (chip != nullptr || (compiler != nullptr && std::string(compiler) == "1")) {
    put_text(p.compiler, "outboard-sim 1");
    p.static_sizes = chip == nullptr || chip->number("symbolic", 0) == 0 ? 1 : 0;
  }
  p.type = OB_DEVICE_ACCELERATOR;
  p.compute_units = 1;
  p.max_work_group_size = 1;
  p.sub_group_size = 1;
  p.vector_width = 1;
  p.total_memory = memory_of_device();
  p.max_allocation = p.total_memory;
  p.alignment = kAlignment;
  p.has_fp64 = 1;
  const size_t size = properties->struct_size;
  std::memcpy(properties, &p, size < sizeof(p) ? size : sizeof(p));
  properties->struct_size = size;
  return OB_OK;
}

ob_status memory_alloc(ob_device device, uint64_t bytes, ob_ptr* ptr) {
  std::lock_guard<std::mutex> lock(device->mutex);
  if (bytes > memory_of_device() - device->used)
    return fail(OB_OUT_OF_MEMORY, "the simulated device's memory is used up");
  const uint64_t rounded = std::max(bytes, uint64_t{1}) + kAlignment - 1;
  void* memory = std::aligned_alloc(kAlignment, rounded / kAlignment * kAlignment);
  if (memory == nullptr) return fail(OB_OUT_OF_MEMORY, "the host has no memory left to simulate a device");
  *ptr = reinterpret_cast<ob_ptr>(memory);
  device->blocks[*ptr] = bytes;
  device->used += bytes;
  model_memory(device);
  return OB_OK;
}

ob_status memory_free(ob_device device, ob_ptr ptr) {
  std::lock_guard<std::mutex> lock(device->mutex);
  const auto found = device->blocks.find(ptr);
  if (found == device->blocks.end()) return fail(OB_INVALID_ARGUMENT, "not the address of an allocation");
  device->used -= found->second;
  device->blocks.erase(found);
  model_memory(device);
  std::free(reinterpret_cast<void*>(ptr));
  return OB_OK;
}

ob_status stream_create(ob_device device, ob_stream* stream) {
  const std::lock_guard<std::mutex> lock(device->mutex);
  *stream = *device->streams.insert(new ob_stream_t(device)).first;
  return OB_OK;
}

/// It counts among its device's streams until nothing of it runs.
ob_status stream_destroy(ob_stream stream) {
  stream->synchronize();
  {
    const std::lock_guard<std::mutex> lock(stream->device->mutex);
    stream->device->streams.erase(stream);
  }
  stream->end();
  delete stream;
  return OB_OK;
}

ob_status stream_wait(ob_stream stream, int blocking) {
  if (blocking == 0 && !stream->idle()) return OB_NOT_READY;
  if (blocking != 0) stream->synchronize();
  model_wait(stream->modelled);
  return told(stream->tell());
}

ob_status stream_wait_event(ob_stream stream, ob_event event) {
  if (const std::shared_ptr<Point> point = event->recorded()) {
    stream->modelled = std::max<int64_t>(stream->modelled, point->modelled);
    stream->put([stream, point] {
      point->wait(stream->device);
      if (point->failure.status != OB_OK) stream->fail(point->failure);
    });
  }
  return OB_OK;
}

ob_status event_create(ob_device device, ob_event* event) {
  *event = new ob_event_t(device);
  return OB_OK;
}

ob_status event_destroy(ob_event event) {
  delete event;
  return OB_OK;
}

ob_status event_record(ob_event event, ob_stream stream) {
  const auto point = std::make_shared<Point>(stream->modelled);
  {
    std::lock_guard<std::mutex> lock(event->mutex);
    event->point = point;
  }
  stream->put([stream, point] { point->reach(stream->told()); }, /*always=*/true);
  return OB_OK;
}

ob_status event_wait(ob_event event, int blocking) {
  const std::shared_ptr<Point> point = event->recorded();
  if (point == nullptr) return OB_OK;
  if (blocking == 0 && point->time() < 0) return OB_NOT_READY;
  point->wait(event->device);
  model_wait(point->modelled);
  return told(point->failure);
}

ob_status event_elapsed(ob_event start, ob_event end, int64_t* nanoseconds) {
  const std::shared_ptr<Point> from = start->recorded(), to = end->recorded();
  if (from == nullptr || to == nullptr) return fail(OB_INVALID_ARGUMENT, "an event was not recorded");
  if (from->time() < 0 || to->time() < 0) return fail(OB_INVALID_ARGUMENT, "an event was not reached");
  const bool modelled = outboard::sim::chosen_chip() != nullptr;
  *nanoseconds = modelled ? to->modelled - from->modelled : to->time() - from->time();
  return OB_OK;
}

/// Fails unless the bytes lie in one allocation: real hardware would fault, or worse, not.
ob_status check_range(ob_device device, ob_ptr begin, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(device->mutex);
  auto block = device->blocks.upper_bound(begin);
  if (block != device->blocks.begin()) {
    --block;
    const uint64_t offset = begin - block->first;
    if (offset <= block->second && bytes <= block->second - offset) return OB_OK;
  }
  return fail(OB_INVALID_ARGUMENT, std::to_string(bytes) + " bytes at " + std::to_string(begin) +
                                       " are not inside an allocation of the simulated device");
}

ob_status copy(ob_stream stream, ob_copy_kind kind, uint64_t dst, uint64_t src, uint64_t bytes) {
  ob_status status = kind == OB_DEVICE_TO_HOST ? OB_OK : check_range(stream->device, dst, bytes);
  if (status == OB_OK && kind != OB_HOST_TO_DEVICE) status = check_range(stream->device, src, bytes);
  if (status != OB_OK) return status;
  model_copy(stream, kind, bytes);
  stream->put([=] {
    const auto begin = std::chrono::steady_clock::now();
    std::memmove(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), bytes);
    take_time(begin, bytes, kind == OB_DEVICE_TO_DEVICE ? memory_speed : link_speed);
  });
  return OB_OK;
}

ob_status fill(ob_stream stream, ob_ptr dst, const void* pattern, uint32_t pattern_size, uint64_t bytes) {
  const ob_status status = check_range(stream->device, dst, bytes);
  if (status != OB_OK || bytes == 0) return status;
  const std::string copied(static_cast<const char*>(pattern), pattern_size);
  model_steps(stream, {{"fill", "float32", 0, 0, bytes}});
  stream->put([=] {
    const auto begin = std::chrono::steady_clock::now();
    auto* const target = reinterpret_cast<char*>(dst);
    std::memcpy(target, copied.data(), copied.size());
    for (uint64_t done = copied.size(); done < bytes;) {  // what is filled is the pattern for as much again
      const uint64_t more = std::min(done, bytes - done);
      std::memcpy(target + done, target, more);
      done += more;
    }
    take_time(begin, bytes, memory_speed);
  });
  return OB_OK;
}

/// The only library function: products of dense or strided matrices of floats, "aten::mm".
struct Product {
  explicit Product(const ob_operand& operand) : data(reinterpret_cast<float*>(operand.data)) {
    for (int i = 0; i < 2; ++i) sizes[i] = operand.sizes[i], strides[i] = operand.strides[i];
  }
  float& at(int64_t i, int64_t j) const { return data[i * strides[0] + j * strides[1]]; }

  float* data;
  int64_t sizes[2], strides[2];
};

constexpr uint32_t kFloat = 6;      // as PyTorch counts dtypes
constexpr int64_t kLongest = 1024;  // size of a matrix that the library takes

bool is_product(const char* name, const ob_operand* operands, uint32_t count) {
  if (std::strcmp(name, "aten::mm") != 0 || count != 3) return false;
  return std::all_of(operands, operands + count, [](const ob_operand& each) {
    return each.kind == OB_OPERAND_TENSOR && each.dtype == kFloat && each.count == 2 && each.sizes[0] <= kLongest &&
           each.sizes[1] <= kLongest;
  });
}

/// What a function of the library or one from bytes is behind its handle.
struct Function {
  std::shared_ptr<const outboard::sim::Program> program;  // nullptr: the product
};

ob_status library_find(ob_device, const char* name, const ob_operand* operands, uint32_t count, ob_function* function) {
  static Function product;
  if (!is_product(name, operands, count))
    return fail(OB_UNSUPPORTED, "the simulated device multiplies small matrices of floats only");
  *function = reinterpret_cast<ob_function>(&product);
  return OB_OK;
}

ob_status multiply(ob_stream stream, const ob_operand* operands) {
  const Product a(operands[0]), b(operands[1]), c(operands[2]);
  for (const Product& each : {a, b, c}) {
    const uint64_t last =
        static_cast<uint64_t>((each.sizes[0] - 1) * each.strides[0] + (each.sizes[1] - 1) * each.strides[1]);
    const ob_status status =
        check_range(stream->device, reinterpret_cast<ob_ptr>(each.data), (last + 1) * sizeof(float));
    if (status != OB_OK) return status;
  }
  const auto matrix = [](const Product& each) {
    return static_cast<uint64_t>(each.sizes[0] * each.sizes[1]) * sizeof(float);
  };
  const double flops = 2.0 * static_cast<double>(a.sizes[0]) * static_cast<double>(a.sizes[1] * b.sizes[1]);
  model_steps(stream, {{"mm", "float32", flops, matrix(a) + matrix(b), matrix(c)}});
  stream->put([a, b, c] {
    for (int64_t i = 0; i < c.sizes[0]; ++i) {
      for (int64_t j = 0; j < c.sizes[1]; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < a.sizes[1]; ++k) sum += double{a.at(i, k)} * b.at(k, j);
        c.at(i, j) = static_cast<float>(sum);
      }
    }
  });
  return OB_OK;
}

ob_status execute(ob_stream stream, const std::shared_ptr<const outboard::sim::Program>& program,
                  const ob_operand* operands, uint32_t count) {
  const auto kept = std::make_shared<KeptOperands>(operands, count);
  if (const std::string problem = program->problem(kept->list()); !problem.empty()) {
    return fail(OB_INVALID_ARGUMENT, problem);
  }
  for (const ob_operand& operand : kept->list()) {
    if (operand.kind != OB_OPERAND_TENSOR) continue;
    const ob_status status = check_range(stream->device, operand.data, outboard::sim::bytes_of(operand));
    if (status != OB_OK) return status;
  }
  hang_while(kInCall, stream->device);
  if (outboard::sim::chosen_chip() != nullptr) model_steps(stream, program->steps(kept->list()));
  stream->put([stream, program, kept] {
    hang_while(kOnDevice, stream->device);
    while (program->hangs() && !stream->device->lost) std::this_thread::sleep_for(kLookAgain);
    try {
      program->run(kept->list());
    } catch (const outboard::sim::WrongIndex& error) {
      stream->fail({OB_INDEX_ERROR, error.what()});
    } catch (const outboard::sim::WrongValue& error) {
      stream->fail({OB_VALUE_ERROR, error.what()});
    } catch (const std::exception& error) {
      stream->fail({OB_INTERNAL, error.what()});
    }
  });
  return OB_OK;
}

ob_status library_call(ob_stream stream, ob_function function, const ob_operand* operands, uint32_t count) {
  const auto* called = reinterpret_cast<const Function*>(function);
  return called->program == nullptr ? multiply(stream, operands) : execute(stream, called->program, operands, count);
}

ob_status function_load(ob_device, const void* bytes, size_t size, ob_function* function) {
  const std::string text(static_cast<const char*>(bytes), size);
  *function = reinterpret_cast<ob_function>(new Function{std::make_shared<outboard::sim::Program>(text)});
  return OB_OK;
}

ob_status function_release(ob_function function) {
  delete reinterpret_cast<Function*>(function);  // what is queued has the program
  return OB_OK;
}

ob_status collective_supported(ob_device, uint32_t kind, uint32_t dtype, uint32_t reduction) {
  if (outboard::sim::is_supported(kind, dtype, reduction)) return OB_OK;
  return fail(OB_UNSUPPORTED, "simulated devices do not do this together");
}

ob_status communicator_id(ob_device, void* id) {
  std::random_device random;
  std::string name = "/outboard-sim-";
  for (int i = 0; i < 4; ++i) name += std::to_string(random()) + "-";
  name.resize(OB_COMMUNICATOR_ID_BYTES, '\0');
  std::memcpy(id, name.data(), name.size());
  return OB_OK;
}

ob_status communicator_joined(ob_communicator communicator) {
  try {
    if (communicator->members->are_all_here()) return OB_OK;
  } catch (const std::exception& error) {
    return fail(OB_INTERNAL, error.what());
  }
  return fail(OB_NOT_READY, "members of the communicator are missing");
}

ob_status communicator_create(ob_device device, const void* id, uint32_t rank, uint32_t size, uint64_t milliseconds,
                              ob_communicator* communicator) {
  if (rank >= size) return fail(OB_INVALID_ARGUMENT, "no such rank");
  std::unique_ptr<ob_communicator_t> made;
  try {
    const std::string name(static_cast<const char*>(id));
    made.reset(new ob_communicator_t{device, std::make_shared<outboard::sim::Members>(name, rank, size)});
  } catch (const std::exception& error) {
    return fail(OB_INTERNAL, error.what());
  }
  if (milliseconds != 0) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
    ob_status status = OB_NOT_READY;
    while ((status = communicator_joined(made.get())) == OB_NOT_READY) {
      if (std::chrono::steady_clock::now() > end) made->members->abort();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    if (status != OB_OK) return fail(OB_NOT_READY, "not all members of the communicator came in time");
  }
  {
    const std::lock_guard<std::mutex> lock(device->mutex);
    device->members.push_back(made->members);
  }
  *communicator = made.release();
  return OB_OK;
}

ob_status communicator_destroy(ob_communicator communicator) {
  delete communicator;  // what is queued has the members
  return OB_OK;
}

ob_status communicator_abort(ob_communicator communicator) {
  communicator->members->abort();
  return OB_OK;
}

ob_status collective(ob_stream stream, ob_communicator communicator, const ob_collective* what) {
  const std::shared_ptr<outboard::sim::Members> members = communicator->members;
  if (stream->device != communicator->device) return fail(OB_INVALID_ARGUMENT, "a stream of another device");
  if (members->is_aborted()) return fail(OB_INTERNAL, "the communicator was aborted");
  ob_status status = collective_supported(stream->device, what->kind, what->dtype, what->reduction);
  if (status != OB_OK) return status;
  const outboard::sim::Part part(*what, members->size());
  const uint64_t read = part.source_bytes(members->rank(), members->size());
  const uint64_t written = part.target_bytes(members->rank(), members->size());
  if (read != 0) status = check_range(stream->device, what->source, read);
  if (status == OB_OK && written != 0) status = check_range(stream->device, what->target, written);
  if (status != OB_OK) return status;
  ++collectives_begun;
  model_collective(stream, what->kind, read, written, members->size());
  stream->put([stream, members, part] {
    const std::string failure = members->run(part);
    if (!failure.empty()) stream->fail({OB_INTERNAL, failure});
  });
  return OB_OK;
}

ob_status no_compiler() { return fail(OB_UNSUPPORTED, "the simulated device has no compiler"); }
ob_status program_build(ob_device, const char*, const char*, ob_program*) { return no_compiler(); }
ob_status program_load(ob_device, const void*, size_t, ob_program*) { return no_compiler(); }
ob_status program_binary(ob_program, void*, size_t*) { return no_compiler(); }
ob_status program_release(ob_program) { return no_compiler(); }
ob_status kernel_get(ob_program, const char*, ob_kernel*) { return no_compiler(); }
ob_status launch(ob_stream, ob_kernel, const uint64_t*, const uint32_t*, const ob_argument*, uint32_t) {
  return no_compiler();
}

ob_status memory_info(ob_device device, uint64_t* free_bytes, uint64_t* total_bytes) {
  std::lock_guard<std::mutex> lock(device->mutex);
  *total_bytes = memory_of_device();
  *free_bytes = *total_bytes - device->used;
  return OB_OK;
}

bool is_lost(ob_device device) { return device->lost; }
template <typename Handle>
bool is_lost(Handle* handle) {
  return handle->device->lost;
}

/// A function as it is, except that it says so if the device of its first argument is lost.
template <auto function>
struct UnlessLost;

template <typename First, typename... Rest, ob_status (*function)(First, Rest...)>
struct UnlessLost<function> {
  static ob_status call(First first, Rest... rest) {
    const ob_status status = is_lost(first) ? OB_OK : function(first, rest...);
    return is_lost(first) ? fail(OB_DEVICE_LOST, "the simulated device was reset") : status;
  }
};

ob_status device_sensors(ob_device device, ob_sensors* sensors) {
  ob_sensors read = outboard::common::unknown_sensors();
  {
    const std::lock_guard<std::mutex> lock(device->mutex);
    read.memory_used = static_cast<int64_t>(device->used);
  }
  if (outboard::sim::chosen_chip() != nullptr) read.compute_busy = outboard::sim::model_clock().busy(device->index);
  outboard::common::give(read, *sensors);
  return OB_OK;
}

ob_driver make_driver() {
  using namespace outboard::common::absent;
  ob_driver driver = outboard::common::new_table("sim");
#define OB_FUNCTION(name) outboard::common::offer<name>(driver.name);
#include "outboard/functions.def"
#define OB_UNLESS_LOST(name) outboard::common::offer<UnlessLost<name>::call>(driver.name)
  OB_UNLESS_LOST(device_properties);
  OB_UNLESS_LOST(memory_alloc);
  OB_UNLESS_LOST(memory_free);
  OB_UNLESS_LOST(memory_info);
  OB_UNLESS_LOST(stream_create);
  OB_UNLESS_LOST(stream_wait);
  OB_UNLESS_LOST(stream_wait_event);
  OB_UNLESS_LOST(event_create);
  OB_UNLESS_LOST(event_record);
  OB_UNLESS_LOST(event_wait);
  OB_UNLESS_LOST(event_elapsed);
  OB_UNLESS_LOST(copy);
  OB_UNLESS_LOST(fill);
  OB_UNLESS_LOST(library_find);
  OB_UNLESS_LOST(library_call);
  OB_UNLESS_LOST(function_load);
  OB_UNLESS_LOST(collective_supported);
  OB_UNLESS_LOST(communicator_id);
  OB_UNLESS_LOST(communicator_create);
  OB_UNLESS_LOST(communicator_joined);
  OB_UNLESS_LOST(collective);
  OB_UNLESS_LOST(device_sensors);
#undef OB_UNLESS_LOST
  return driver;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const ob_driver* outboard_driver(void) {
  static const ob_driver driver = make_driver();
  return &driver;
}

/// What is submitted to a stream from now on waits until outboard_sim_resume.
__attribute__((visibility("default"))) void outboard_sim_pause(ob_stream stream) {
  const auto point = std::make_shared<Point>();
  stream->pause = point;
  stream->put([stream, point] { point->wait(stream->device); });
}

__attribute__((visibility("default"))) void outboard_sim_resume(ob_stream stream) { stream->pause->reach(); }

/// From now on, executables hang: with 1 on the device, with 2 in the call that is to submit them, until 0.
__attribute__((visibility("default"))) void outboard_sim_hang(int where) { hang = where; }

/// What the devices did so far in modelled time (Clock::log), until the next call.
__attribute__((visibility("default"))) const char* outboard_sim_timeline() {
  thread_local std::string text;
  text = outboard::sim::model_clock().log();
  return text.c_str();
}

/// What was done before is no part of the timeline any more.
__attribute__((visibility("default"))) void outboard_sim_forget() { outboard::sim::model_clock().forget(); }

/// Collectives that were submitted in this process so far.
__attribute__((visibility("default"))) uint64_t outboard_sim_collectives(void) { return collectives_begun; }

/// From now on, copies to and from the host take as long as `link` bytes per second make them, fills and other copies
/// as long as `memory` bytes per second do. 0: no longer than they do.
__attribute__((visibility("default"))) void outboard_sim_pace(uint64_t link, uint64_t memory) {
  link_speed = link;
  memory_speed = memory;
}
}
