// SPDX-License-Identifier: Apache-2.0
#include "outboard/driver.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "common/caches.h"
#include "common/device_parts.h"
#include "common/expected_memory.h"
#include "common/group_launch.h"
#include "common/host_memory.h"
#include "common/table.h"
#include "common/thread_pool.h"
#include "common/transfers.h"
#include "host/compiler.h"
#include "host/onednn.h"
#include "host/program.h"
#include "host/sensors.h"

/// The host driver: the processor that the process runs on as a device, with Clang as its compiler. Kernels run on the
/// thread that launches them and a pool, so that all work is done when the call that submits it returns.
using namespace outboard::common;
using namespace outboard::host;  // the C API's own names

struct ob_device_t {
  const Compiler* compiler;
  ThreadPool* pool;  // never deleted
  uint32_t sub_group_size;
  std::once_flag expects{};
  std::atomic<ExpectedMemory*> expected{nullptr};  // never deleted
};

struct ob_stream_t {
  ob_device device;
};

struct ob_event_t {
  std::atomic<int64_t> reached{-1};  // nanoseconds; -1 before it is recorded
};

/// A kernel is an `outboard::host::Kernel`.
struct ob_program_t {
  ob_device device;
  std::unique_ptr<Program> code;
};

namespace {

constexpr uint64_t kAlignment = 128;
constexpr uint32_t kArgumentBytes = 16384;
constexpr uint32_t kMostSubGroup = 64;
/// What a GPU of NVIDIA has, and programs in CUDA C++ are written for.
constexpr uint32_t kWarp = 32, kCudaArgumentBytes = 4096;
constexpr uint64_t kCudaLocalBytes = 48 << 10;

/// Processors that this process may use.
unsigned processors() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) return static_cast<unsigned>(CPU_COUNT(&allowed));
  return std::max(std::thread::hardware_concurrency(), 1u);
}

/// Work-items in a sub-group: OUTBOARD_HOST_SUB_GROUP, to try kernels of GPUs; 1, none, if unset. 0 if it is no power
/// of two up to 64.
uint32_t wanted_sub_group() {
  const char* text = std::getenv("OUTBOARD_HOST_SUB_GROUP");
  if (text == nullptr || *text == '\0') return 1;
  char* end = nullptr;
  const long size = std::strtol(text, &end, 10);
  const bool right = *end == '\0' && size >= 1 && size <= kMostSubGroup && (size & (size - 1)) == 0;
  return right ? static_cast<uint32_t>(size) : 0;
}

/// The language of programs: OUTBOARD_HOST_DIALECT, to try those for GPUs of NVIDIA; nothing if nobody knows it.
std::optional<Language> wanted_language() {
  const char* text = std::getenv("OUTBOARD_HOST_DIALECT");
  const std::string name = text != nullptr ? text : "";
  if (name.empty() || name == "opencl-c") return Language::opencl;
  return name == "cuda" ? std::optional(Language::cuda) : std::nullopt;
}

struct Devices {
  std::optional<Compiler> compiler;
  OneDnn* library = nullptr;
  std::deque<ob_device_t> list;
  std::string problem;
  Sensors sensors;

  Devices() {
    const unsigned parts = wanted_parts();
    const std::optional<Language> language = wanted_language();
    const uint32_t sub_group = language == Language::cuda ? kWarp : wanted_sub_group();
    if (parts == 0) problem = kBadNumberOfParts;
    if (sub_group == 0) problem = "OUTBOARD_HOST_SUB_GROUP must be a power of two from 1 to 64";
    if (!language) problem = "OUTBOARD_HOST_DIALECT must be opencl-c or cuda";
    if (!problem.empty()) return;
    try {
      compiler.emplace(Compiler::find(*language));
    } catch (const std::exception& error) {
      problem = error.what();
      return;
    }
    library = OneDnn::load();
    for (unsigned i = 0; i < parts; ++i) {
      list.emplace_back();
      list.back().compiler = &*compiler;
      list.back().pool = new ThreadPool(std::max(processors() / parts, 1u));
      list.back().sub_group_size = sub_group;
    }
  }
};

Devices& devices() {
  static Devices* const instance = new Devices;  // leaked: threads may outlive static destructors
  return *instance;
}

ob_status device_count(uint32_t* count) {
  *count = static_cast<uint32_t>(devices().list.size());
  if (*count == 0) error_text = devices().problem;
  return OB_OK;
}

ob_status device_open(uint32_t index, ob_device* device) {
  if (index >= devices().list.size()) return fail(OB_INVALID_ARGUMENT, "no host device " + std::to_string(index));
  *device = &devices().list[index];
  return OB_OK;
}

ob_status memory_info(ob_device, uint64_t* free_bytes, uint64_t* total_bytes) {
  const HostMemory memory = HostMemory::now();
  *total_bytes = memory.for_devices();
  *free_bytes = std::min(*total_bytes, memory.available);
  return OB_OK;
}

ob_status device_sensors(ob_device, ob_sensors* sensors) {
  give(devices().sensors.read(), *sensors);
  return OB_OK;
}

ob_status device_properties(ob_device device, ob_device_properties* properties) {
  ob_device_properties p{};
  const Compiler& compiler = *device->compiler;
  const std::string name = processor_text("model name");
  p.struct_size = sizeof(p);
  put_text(p.name, name.empty() ? "CPU" : name);
  put_text(p.vendor, processor_text("vendor_id"));
  put_text(p.driver_version, compiler.version());
  const bool cuda = compiler.language() == Language::cuda;
  put_text(p.dialect, cuda ? "cuda" : "opencl-c");
  put_text(p.cache_key, (cuda ? "host cuda|" : "host|") + compiler.version() + "|" + compiler.fingerprint() + "|" +
                            std::to_string(device->pool->threads()) + "|" + std::to_string(device->sub_group_size));
  p.type = cuda ? OB_DEVICE_GPU : OB_DEVICE_CPU;
  p.compute_units = device->pool->threads();
  p.max_work_group_size = kMostWorkItems;
  p.sub_group_size = device->sub_group_size;
  p.vector_width = cuda ? 1 : compiler.vector_width();
  p.total_memory = HostMemory::now().for_devices();
  p.max_allocation = p.total_memory;
  p.local_memory = cuda ? kCudaLocalBytes : kMostLocalBytes;
  p.alignment = kAlignment;
  p.host_accessible = 1;
  p.takes_host_memory = 1;
  p.has_fp16 = compiler.has_fp16() ? 1 : 0;
  p.has_fp64 = 1;
  p.has_int64_atomics = 1;
  p.matrix_units = cuda ? 1 : 0;
  p.max_argument_bytes = cuda ? kCudaArgumentBytes : kArgumentBytes;
  p.execution = cuda ? OB_EXECUTION_SIMT : OB_EXECUTION_VECTOR;
  const Caches caches = Caches::now();
  p.near_cache = caches.near;
  p.last_cache = caches.last;
  if (devices().library != nullptr) put_text(p.library, devices().library->name());
  const size_t size = properties->struct_size;
  std::memcpy(properties, &p, std::min(size, sizeof(p)));
  properties->struct_size = size;
  return OB_OK;
}

void* allocate(uint64_t bytes) {
  if (bytes > UINT64_MAX - kAlignment) return nullptr;
  return std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
}

ob_status memory_alloc(ob_device device, uint64_t bytes, ob_ptr* ptr) {
  ExpectedMemory* const expected = device->expected.load(std::memory_order_acquire);
  void* memory = expected != nullptr ? expected->take(bytes) : nullptr;
  if (memory == nullptr) memory = allocate(bytes);
  if (memory == nullptr) return fail(OB_OUT_OF_MEMORY, "the system has no " + std::to_string(bytes) + " bytes left");
  prefer_huge_pages(memory, bytes);
  *ptr = reinterpret_cast<ob_ptr>(memory);
  return OB_OK;
}

ob_status memory_free(ob_device device, ob_ptr ptr) {
  auto* const memory = reinterpret_cast<void*>(ptr);
  ExpectedMemory* const expected = device->expected.load(std::memory_order_acquire);
  if (expected == nullptr || !expected->give_back(memory)) std::free(memory);
  return OB_OK;
}

void prepare_memory(ob_device_t& device, uint64_t bytes) {
  void* const memory = allocate(bytes);
  if (memory != nullptr) device.expected.store(new ExpectedMemory(memory, bytes), std::memory_order_release);
}

/// The first expectation counts: programs have one when they start.
ob_status memory_expect(ob_device device, uint64_t bytes) {
  if (!ExpectedMemory::helps()) return OB_OK;
  std::call_once(device->expects, prepare_memory, std::ref(*device), ExpectedMemory::with_edges(bytes));
  return OB_OK;
}

ob_status stream_create(ob_device device, ob_stream* stream) {
  *stream = new ob_stream_t{device};
  return OB_OK;
}

ob_status stream_destroy(ob_stream stream) {
  delete stream;
  return OB_OK;
}

ob_status stream_wait(ob_stream, int) { return OB_OK; }
ob_status stream_wait_event(ob_stream, ob_event) { return OB_OK; }

ob_status event_create(ob_device, ob_event* event) {
  *event = new ob_event_t;
  return OB_OK;
}

ob_status event_destroy(ob_event event) {
  delete event;
  return OB_OK;
}

ob_status event_record(ob_event event, ob_stream) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  event->reached.store(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(), std::memory_order_release);
  return OB_OK;
}

ob_status event_wait(ob_event, int) { return OB_OK; }

ob_status event_elapsed(ob_event start, ob_event end, int64_t* nanoseconds) {
  const int64_t from = start->reached.load(std::memory_order_acquire),
                to = end->reached.load(std::memory_order_acquire);
  if (from < 0 || to < 0) return fail(OB_INVALID_ARGUMENT, "the event was not recorded");
  *nanoseconds = to - from;
  return OB_OK;
}

ob_status copy(ob_stream stream, ob_copy_kind, uint64_t dst, uint64_t src, uint64_t bytes) {
  const bool overlaps = dst < src + bytes && src < dst + bytes;
  copy_on_host(stream->device->pool, reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), bytes, overlaps);
  return OB_OK;
}

ob_status copy_peer(ob_stream stream, ob_device, ob_ptr dst, ob_device, ob_ptr src, uint64_t bytes) {
  return copy(stream, OB_DEVICE_TO_DEVICE, dst, src, bytes);
}

ob_status fill(ob_stream, ob_ptr dst, const void* pattern, uint32_t pattern_size, uint64_t bytes) {
  fill_on_host(reinterpret_cast<char*>(dst), pattern, pattern_size, bytes);
  return OB_OK;
}

ob_status program_build(ob_device device, const char* source, const char* options, ob_program* program) {
  auto code = std::make_unique<Program>(device->compiler->build(source, options));
  *program = new ob_program_t{device, std::move(code)};
  return OB_OK;
}

ob_status program_load(ob_device device, const void* binary, size_t bytes, ob_program* program) {
  *program = new ob_program_t{device, Program::load({static_cast<const char*>(binary), bytes}, *device->compiler)};
  return OB_OK;
}

ob_status program_binary(ob_program program, void* binary, size_t* bytes) {
  const std::string& own = program->code->binary();
  if (binary != nullptr) {
    if (*bytes < own.size()) return fail(OB_INVALID_ARGUMENT, "the buffer is smaller than the program's binary");
    std::memcpy(binary, own.data(), own.size());
  }
  *bytes = own.size();
  return OB_OK;
}

ob_status program_release(ob_program program) {
  delete program;
  return OB_OK;
}

Kernel& kernel_of(ob_kernel kernel) { return *reinterpret_cast<Kernel*>(kernel); }

ob_status kernel_get(ob_program program, const char* name, ob_kernel* kernel) {
  Kernel* const found = program->code->find(name);
  if (found == nullptr) return fail(OB_INVALID_ARGUMENT, std::string("the program has no kernel ") + name);
  *kernel = reinterpret_cast<ob_kernel>(found);
  return OB_OK;
}

ob_status kernel_properties(ob_kernel kernel, ob_kernel_properties* properties) {
  const ob_kernel_properties needs{properties->struct_size, kMostWorkItems, kernel_of(kernel).interface().local_bytes};
  std::memcpy(properties, &needs, std::min(properties->struct_size, sizeof(needs)));
  return OB_OK;
}

ob_status launch_batch(ob_stream stream, const ob_launch* launches, uint32_t count) {
  ob_status status = OB_OK;
  std::deque<Launch> all;
  std::vector<GroupLaunch> groups;
  for (uint32_t i = 0; i < count; ++i) {
    Kernel& kernel = kernel_of(launches[i].kernel);
    uint32_t local[3] = {launches[i].local[0], launches[i].local[1], launches[i].local[2]};
    kernel.choose_local_size(local);
    if (const std::string problem = kernel.problem_with(launches[i], local); !problem.empty()) {
      status = fail(OB_INVALID_ARGUMENT, problem);
      continue;
    }
    groups.push_back(all.emplace_back(kernel, launches[i], local, stream->device->sub_group_size).groups());
  }
  if (groups.size() == 1) {
    run_groups(*stream->device->pool, groups[0]);
  } else {
    run_groups(*stream->device->pool, groups.data(), groups.size());
  }
  for (const Launch& launch : all) {
    if (launch.failed()) status = fail(OB_OUT_OF_MEMORY, "no memory for the stacks of work-items");
  }
  return status;
}

ob_status launch(ob_stream stream, ob_kernel kernel, const uint64_t global[3], const uint32_t local[3],
                 const ob_argument* arguments, uint32_t argument_count) {
  const ob_launch one{
      kernel, {global[0], global[1], global[2]}, {local[0], local[1], local[2]}, argument_count, arguments};
  return launch_batch(stream, &one, 1);
}

uint64_t launch_cost(ob_kernel kernel, const uint64_t global[3], const uint32_t local[3]) {
  return kernel_of(kernel).expected_nanoseconds(global, local);
}

ob_status library_find(ob_device device, const char* name, const ob_operand* operands, uint32_t count,
                       ob_function* function) {
  OneDnn* const library = devices().library;
  OneDnn::Function* const found =
      library == nullptr ? nullptr : library->find(name, {operands, operands + count}, device->pool->threads());
  if (found == nullptr) return fail(OB_UNSUPPORTED, std::string("there is no library function for ") + name);
  *function = reinterpret_cast<ob_function>(found);
  return OB_OK;
}

ob_status library_call(ob_stream, ob_function function, const ob_operand* operands, uint32_t count) {
  reinterpret_cast<OneDnn::Function*>(function)->run({operands, operands + count});
  return OB_OK;
}

constexpr ob_driver make_driver() {
  using namespace outboard::common::absent;
  ob_driver driver = outboard::common::new_table("host");
#define OB_FUNCTION(name) outboard::common::offer<name>(driver.name);
#include "outboard/functions.def"
  return driver;
}

constexpr ob_driver kDriver = make_driver();

}  // namespace

extern "C" __attribute__((visibility("default"))) const ob_driver* outboard_driver(void) { return &kDriver; }
