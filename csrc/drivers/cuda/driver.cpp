// SPDX-License-Identifier: Apache-2.0
#include "outboard/driver.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "common/table.h"
#include "cuda/device.h"
#include "cuda/nvml.h"
#include "cuda/program.h"
#include "cuda/transfers.h"

/// The CUDA driver: GPUs of NVIDIA through the driver API, with NVRTC as their compiler. Each device's primary context
/// is used, the one that other libraries in the process use, too.
using namespace outboard::common;
using namespace outboard::cuda;  // the C API's own names

struct ob_event_t {
  ob_device device;
  CUevent event;
};

namespace {

constexpr uint64_t kAlignment = 256;
constexpr uint32_t kArgumentBytes = 4096;
constexpr uint32_t kWarp = 32;
constexpr int kMatrixUnits = 80;  // compute capability from which the words for matrices are there
/// Whether they are to be used: no GPU has run the kernels that use them yet.
bool wants_matrix_units() {
  const char* const wanted = std::getenv("OUTBOARD_CUDA_MATRIX_UNITS");
  return wanted != nullptr && std::string_view(wanted) == "1";
}
/// Of local memory that a kernel declares; more would have to be asked for at each launch.
constexpr int kLocalBytes = 48 << 10;
/// A change of how programs are compiled, by which binaries made before are not taken for new ones.
constexpr const char* kRevision = "1";

struct Graph {
  ob_device device;
  CUgraphExec executable;
};

ob_status device_count(uint32_t* count) {
  *count = static_cast<uint32_t>(Devices::get().list.size());
  if (*count == 0) fail(OB_OK, Devices::get().problem);
  return OB_OK;
}

ob_status device_open(uint32_t index, ob_device* device) {
  if (index >= Devices::get().list.size()) return fail(OB_INVALID_ARGUMENT, "no CUDA device " + std::to_string(index));
  *device = &Devices::get().list[index];
  return OB_OK;
}

/// The version of CUDA that the NVIDIA driver has: 12040 for 12.4.
int cuda_version() {
  int version = 0;
  return cu().cuDriverGetVersion(&version) == CUDA_SUCCESS ? version : 0;
}

std::string dotted(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

ob_status device_properties(ob_device device, ob_device_properties* properties) {
  if (device->lost.load(std::memory_order_acquire)) return fail(OB_DEVICE_LOST, device->why_lost);
  ob_device_properties p{};
  p.struct_size = sizeof(p);
  size_t total = 0;
  CUresult result = cu().cuDeviceGetName(p.name, sizeof(p.name), device->id);
  if (result == CUDA_SUCCESS) result = cu().cuDeviceTotalMem(&total, device->id);
  if (result != CUDA_SUCCESS) return status_of(device, result, "asking a device what it is");
  const std::string compiler = device->compiler->version();
  put_text(p.vendor, "NVIDIA Corporation");
  put_text(p.driver_version, "CUDA " + dotted(cuda_version()) + ", " + compiler);
  put_text(p.dialect, "cuda");
  put_text(p.cache_key, std::string("cuda|") + p.name + "|" + std::to_string(device->capability) + "|" +
                            device->architecture.name() + "|" + std::to_string(cuda_version()) + "|" + compiler + "|" +
                            kRevision);
  p.type = OB_DEVICE_GPU;
  p.compute_units = static_cast<uint32_t>(attribute_of(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  p.max_work_group_size = static_cast<uint32_t>(attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
  p.sub_group_size = kWarp;
  p.vector_width = 1;
  p.total_memory = total;
  p.max_allocation = total;
  p.local_memory = static_cast<uint64_t>(
      std::min(attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK), kLocalBytes));
  p.alignment = kAlignment;
  p.has_fp16 = 1;
  p.has_fp64 = 1;
  p.has_int64_atomics = 1;
  p.matrix_units = device->architecture.number >= kMatrixUnits && wants_matrix_units() ? 1 : 0;
  p.max_argument_bytes = kArgumentBytes;
  p.execution = OB_EXECUTION_SIMT;
  p.last_cache = static_cast<uint64_t>(attribute_of(device, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE));
  put_text(p.library, device->functions.name());
  const size_t size = properties->struct_size;
  std::memcpy(properties, &p, std::min(size, sizeof(p)));
  properties->struct_size = size;
  return OB_OK;
}

ob_status device_sensors(ob_device device, ob_sensors* sensors) {
  if (device->lost.load(std::memory_order_acquire)) return fail(OB_DEVICE_LOST, device->why_lost);
  char bus_id[32] = {};
  const CUresult result = cu().cuDeviceGetPCIBusId(bus_id, sizeof(bus_id), device->id);
  if (result != CUDA_SUCCESS) return status_of(device, result, "cuDeviceGetPCIBusId");
  const Nvml* const library = Nvml::get();
  give(library == nullptr ? unknown_sensors() : library->read(bus_id), *sensors);
  return OB_OK;
}

ob_status memory_info(ob_device device, uint64_t* free_bytes, uint64_t* total_bytes) {
  const Entry entry(device);
  if (entry.status() != OB_OK) return entry.status();
  size_t free = 0, total = 0;
  const CUresult result = cu().cuMemGetInfo(&free, &total);
  *free_bytes = free;
  *total_bytes = total;
  return status_of(device, result, "cuMemGetInfo");
}

ob_status memory_alloc(ob_device device, uint64_t bytes, ob_ptr* ptr) {
  const Entry entry(device);
  if (entry.status() != OB_OK) return entry.status();
  return status_of(device, cu().cuMemAlloc(ptr, bytes), "cuMemAlloc");
}

ob_status memory_free(ob_device device, ob_ptr ptr) {
  const Entry entry(device);
  if (entry.status() != OB_OK) return entry.status();
  return status_of(device, cu().cuMemFree(ptr), "cuMemFree");
}

ob_status host_alloc(ob_device device, uint64_t bytes, void** ptr) {
  const Entry entry(device);
  if (entry.status() != OB_OK) return entry.status();
  return status_of(device, cu().cuMemHostAlloc(ptr, bytes, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
}

ob_status host_free(ob_device device, void* ptr) {
  const Entry entry(device);
  if (entry.status() != OB_OK) return entry.status();
  return status_of(device, cu().cuMemFreeHost(ptr), "cuMemFreeHost");
}

ob_status stream_create(ob_device device, ob_stream* stream) {
  const Entry entry(device);
  if (entry.status() != OB_OK) return entry.status();
  auto made = std::make_unique<ob_stream_t>();
  made->device = device;
  const CUresult result = cu().cuStreamCreate(&made->stream, CU_STREAM_NON_BLOCKING);
  if (result != CUDA_SUCCESS) return status_of(device, result, "cuStreamCreate");
  const std::lock_guard lock(device->mutex);
  made->place = device->streams.insert(device->streams.end(), made.get());
  *stream = made.release();
  return OB_OK;
}

/// Gives back streams that were destroyed and have nothing left to do. The device's mutex must be held.
void reap(ob_device device) {
  device->leaving.remove_if([](CUstream stream) {
    if (cu().cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) return false;
    cu().cuStreamDestroy(stream);
    return true;
  });
}

/// A stream with work left to do stays, so that a program that it uses can wait for it.
ob_status stream_destroy(ob_stream stream) {
  const std::unique_ptr<ob_stream_t> owned(stream);
  const ob_device device = stream->device;
  const Entry entry(device);
  const std::lock_guard lock(device->mutex);
  device->streams.erase(stream->place);
  if (entry.status() != OB_OK) return OB_OK;  // nothing is left of a lost device's streams
  stream->workspace.release();
  device->leaving.push_back(stream->stream);
  reap(device);
  return OB_OK;
}

ob_status stream_wait(ob_stream stream, int blocking) {
  const Entry entry(stream->device);
  if (entry.status() != OB_OK) return entry.status();
  if (blocking == 0) return status_of(stream->device, cu().cuStreamQuery(stream->stream), "cuStreamQuery");
  return status_of(stream->device, cu().cuStreamSynchronize(stream->stream), "cuStreamSynchronize");
}

ob_status stream_wait_event(ob_stream stream, ob_event event) {
  const Entry entry(stream->device);
  if (entry.status() != OB_OK) return entry.status();
  return status_of(stream->device, cu().cuStreamWaitEvent(stream->stream, event->event, 0), "cuStreamWaitEvent");
}

ob_status event_create(ob_device device, ob_event* event) {
  const Entry entry(device);
  if (entry.status() != OB_OK) return entry.status();
  auto made = std::make_unique<ob_event_t>(ob_event_t{device, nullptr});
  const CUresult result = cu().cuEventCreate(&made->event, CU_EVENT_DEFAULT);
  if (result == CUDA_SUCCESS) *event = made.release();
  return status_of(device, result, "cuEventCreate");
}

ob_status event_destroy(ob_event event) {
  const std::unique_ptr<ob_event_t> owned(event);
  const Entry entry(event->device);
  if (entry.status() != OB_OK) return OB_OK;  // nothing is left of a lost device's events
  return status_of(event->device, cu().cuEventDestroy(event->event), "cuEventDestroy");
}

ob_status event_record(ob_event event, ob_stream stream) {
  const Entry entry(event->device);
  if (entry.status() != OB_OK) return entry.status();
  return status_of(event->device, cu().cuEventRecord(event->event, stream->stream), "cuEventRecord");
}

ob_status event_wait(ob_event event, int blocking) {
  const Entry entry(event->device);
  if (entry.status() != OB_OK) return entry.status();
  if (blocking == 0) return status_of(event->device, cu().cuEventQuery(event->event), "cuEventQuery");
  return status_of(event->device, cu().cuEventSynchronize(event->event), "cuEventSynchronize");
}

ob_status event_elapsed(ob_event start, ob_event end, int64_t* nanoseconds) {
  const Entry entry(start->device);
  if (entry.status() != OB_OK) return entry.status();
  float milliseconds = 0;
  const CUresult result = cu().cuEventElapsedTime(&milliseconds, start->event, end->event);
  if (result == CUDA_ERROR_INVALID_HANDLE) return fail(OB_INVALID_ARGUMENT, "the event was not recorded");
  if (result == CUDA_ERROR_NOT_READY) {
    return fail(OB_INVALID_ARGUMENT, "the event is not reached yet: synchronize it first");
  }
  *nanoseconds = std::llround(static_cast<double>(milliseconds) * 1e6);
  return status_of(start->device, result, "cuEventElapsedTime");
}

ob_status copy(ob_stream stream, ob_copy_kind kind, uint64_t dst, uint64_t src, uint64_t bytes) {
  const Entry entry(stream->device);
  if (entry.status() != OB_OK || bytes == 0) return entry.status();
  if (kind == OB_DEVICE_TO_DEVICE) return enqueue_device_copy(stream, dst, src, bytes);
  if (kind == OB_HOST_TO_DEVICE) {
    return status_of(stream->device,
                     cu().cuMemcpyHtoDAsync(dst, reinterpret_cast<const void*>(src), bytes, stream->stream),
                     "cuMemcpyHtoDAsync");
  }
  return status_of(stream->device, cu().cuMemcpyDtoHAsync(reinterpret_cast<void*>(dst), src, bytes, stream->stream),
                   "cuMemcpyDtoHAsync");
}

/// The other device must have a context, too.
ob_status copy_peer(ob_stream stream, ob_device dst_device, ob_ptr dst, ob_device src_device, ob_ptr src,
                    uint64_t bytes) {
  const Entry other(dst_device);
  if (other.status() != OB_OK) return other.status();
  const Entry entry(src_device);
  if (entry.status() != OB_OK || bytes == 0) return entry.status();
  if (dst_device == src_device) return enqueue_device_copy(stream, dst, src, bytes);
  return status_of(src_device,
                   cu().cuMemcpyPeerAsync(dst, dst_device->context, src, src_device->context, bytes, stream->stream),
                   "cuMemcpyPeerAsync");
}

ob_status fill(ob_stream stream, ob_ptr dst, const void* pattern, uint32_t pattern_size, uint64_t bytes) {
  const Entry entry(stream->device);
  if (entry.status() != OB_OK || bytes == 0) return entry.status();
  return enqueue_fill(stream, dst, pattern, pattern_size, bytes);
}

/// What to do where an NVIDIA driver refuses code that NVRTC has just made.
std::string advice_on(const Nvrtc& compiler) {
  if (compiler.number() <= cuda_version()) return {};
  return ". " + compiler.version() + " is newer than the NVIDIA driver, which has CUDA " + dotted(cuda_version()) +
         ": a newer driver, or an older NVRTC ('pip install nvidia-cuda-nvrtc-cu12', OUTBOARD_CUDA_NVRTC)";
}

ob_status program_build(ob_device device, const char* source, const char* options, ob_program* program) {
  const Entry entry(device);
  if (entry.status() != OB_OK) return entry.status();
  const ob_status status =
      load_program(device, device->compiler->build(source, options, device->architecture), program);
  if (status != OB_INVALID_ARGUMENT) return status;
  return fail(OB_BUILD_FAILED, std::string(last_error()) + advice_on(*device->compiler));
}

ob_status program_load(ob_device device, const void* binary, size_t bytes, ob_program* program) {
  const Entry entry(device);
  if (entry.status() != OB_OK) return entry.status();
  return load_program(device, code_in({static_cast<const char*>(binary), bytes}, device->architecture.name()), program);
}

ob_status program_binary(ob_program program, void* binary, size_t* bytes) {
  const ob_device device = program->device;
  if (device->lost.load(std::memory_order_acquire)) return fail(OB_DEVICE_LOST, device->why_lost);
  const std::string own = to_binary(device->architecture.name(), program->code);
  if (binary != nullptr) {
    if (*bytes < own.size()) return fail(OB_INVALID_ARGUMENT, "the buffer is smaller than the program's binary");
    std::memcpy(binary, own.data(), own.size());
  }
  *bytes = own.size();
  return OB_OK;
}

/// Waits for what is queued on a device: the API does not say what becomes of kernels that run while their module is
/// unloaded. A stream that is being captured runs nothing, and must not be waited for.
ob_status wait_for_all(ob_device device) {
  const std::lock_guard lock(device->mutex);
  CUresult result = CUDA_SUCCESS;
  for (const ob_stream stream : device->streams) {
    if (!stream->capturing && result == CUDA_SUCCESS) result = cu().cuStreamSynchronize(stream->stream);
  }
  for (const CUstream stream : device->leaving) {
    if (result == CUDA_SUCCESS) result = cu().cuStreamSynchronize(stream);
  }
  reap(device);
  return result == CUDA_SUCCESS ? OB_OK : OB_INTERNAL;
}

/// A program that cannot be waited for stays loaded.
ob_status program_release(ob_program program) {
  const std::unique_ptr<ob_program_t> owned(program);
  const Entry entry(program->device);
  if (entry.status() != OB_OK || wait_for_all(program->device) != OB_OK) return OB_OK;
  return status_of(program->device, cu().cuModuleUnload(program->module), "cuModuleUnload");
}

ob_status kernel_get(ob_program program, const char* name, ob_kernel* kernel) {
  const Entry entry(program->device);
  if (entry.status() != OB_OK) return entry.status();
  return find_kernel(program, name, kernel);
}

ob_status kernel_properties(ob_kernel kernel, ob_kernel_properties* properties) {
  const ob_device device = kernel->device;
  if (device->lost.load(std::memory_order_acquire)) return fail(OB_DEVICE_LOST, device->why_lost);
  const ob_kernel_properties needs{properties->struct_size, kernel->most_items, kernel->local_memory};
  std::memcpy(properties, &needs, std::min(properties->struct_size, sizeof(needs)));
  return OB_OK;
}

ob_status launch(ob_stream stream, ob_kernel kernel, const uint64_t global[3], const uint32_t local[3],
                 const ob_argument* arguments, uint32_t argument_count) {
  constexpr uint32_t kFew = 64;
  const Entry entry(stream->device);
  if (entry.status() != OB_OK) return entry.status();
  if (const std::string problem = problem_with(*kernel, arguments, argument_count); !problem.empty()) {
    return fail(OB_INVALID_ARGUMENT, problem);
  }
  if (global[0] == 0 || global[1] == 0 || global[2] == 0) return OB_OK;
  const Grid grid = grid_of(*kernel, global, local);
  void* few[kFew];
  std::vector<void*> many(argument_count > kFew ? argument_count : 0);
  void** const values = argument_count > kFew ? many.data() : few;
  for (uint32_t i = 0; i < argument_count; ++i) values[i] = const_cast<void*>(arguments[i].value);
  return status_of(stream->device,
                   cu().cuLaunchKernel(kernel->function, grid.groups[0], grid.groups[1], grid.groups[2], grid.items[0],
                                       grid.items[1], grid.items[2], 0, stream->stream, values, nullptr),
                   "cuLaunchKernel");
}

void set_capturing(ob_stream stream, bool capturing) {
  const std::lock_guard lock(stream->device->mutex);
  stream->capturing = capturing;
}

/// Relaxed: other threads go on as ever, and another one than this may end the capture.
ob_status capture_begin(ob_stream stream) {
  const Entry entry(stream->device);
  if (entry.status() != OB_OK) return entry.status();
  const CUresult result = cu().cuStreamBeginCapture(stream->stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  if (result == CUDA_SUCCESS) set_capturing(stream, true);
  return status_of(stream->device, result, "cuStreamBeginCapture");
}

ob_status capture_end(ob_stream stream, void** graph) {
  const ob_device device = stream->device;
  const Entry entry(device);
  if (entry.status() != OB_OK) return entry.status();
  CUgraph captured = nullptr;
  const CUresult ended = cu().cuStreamEndCapture(stream->stream, &captured);
  set_capturing(stream, false);
  if (ended != CUDA_SUCCESS) return status_of(device, ended, "cuStreamEndCapture");
  CUgraphExec executable = nullptr;
  const CUresult result = cu().cuGraphInstantiate(&executable, captured, 0);
  const ob_status destroyed = status_of(device, cu().cuGraphDestroy(captured), "cuGraphDestroy");
  if (result != CUDA_SUCCESS) return status_of(device, result, "cuGraphInstantiateWithFlags");
  *graph = new Graph{device, executable};
  return destroyed;
}

ob_status graph_launch(ob_stream stream, void* graph) {
  const Entry entry(stream->device);
  if (entry.status() != OB_OK) return entry.status();
  return status_of(stream->device, cu().cuGraphLaunch(static_cast<Graph*>(graph)->executable, stream->stream),
                   "cuGraphLaunch");
}

ob_status graph_destroy(void* graph) {
  const std::unique_ptr<Graph> owned(static_cast<Graph*>(graph));
  if (owned == nullptr) return OB_OK;
  const Entry entry(owned->device);
  if (entry.status() != OB_OK) return OB_OK;  // nothing is left of a lost device's graphs
  return status_of(owned->device, cu().cuGraphExecDestroy(owned->executable), "cuGraphExecDestroy");
}

ob_status library_find(ob_device device, const char* name, const ob_operand* operands, uint32_t count,
                       ob_function* function) {
  const Entry entry(device);
  if (entry.status() != OB_OK) return entry.status();
  std::string why;
  Function* const found = device->functions.find(name, {operands, operands + count}, &why);
  if (found == nullptr) return fail(OB_UNSUPPORTED, why);
  *function = reinterpret_cast<ob_function>(found);
  return OB_OK;
}

ob_status library_call(ob_stream stream, ob_function function, const ob_operand* operands, uint32_t count) {
  const Entry entry(stream->device);
  if (entry.status() != OB_OK) return entry.status();
  const Outcome outcome =
      reinterpret_cast<Function*>(function)->run({operands, operands + count}, stream->workspace, stream->stream);
  if (outcome.memory != CUDA_SUCCESS) {
    return status_of(stream->device, outcome.memory, "cuMemAlloc of a library's workspace");
  }
  if (outcome.status == OB_OK) return OB_OK;
  // What a kernel did wrong before is reported by the next call that asks.
  const CUresult earlier = cu().cuStreamQuery(stream->stream);
  if (is_final(earlier)) return status_of(stream->device, earlier, "a library function's stream");
  return fail(outcome.status, outcome.text);
}

constexpr ob_driver make_driver() {
  using namespace outboard::common::absent;
  ob_driver driver = outboard::common::new_table("cuda");
#define OB_FUNCTION(name) outboard::common::offer<name>(driver.name);
#include "outboard/functions.def"
  return driver;
}

constexpr ob_driver kDriver = make_driver();

}  // namespace

extern "C" __attribute__((visibility("default"))) const ob_driver* outboard_driver(void) { return &kDriver; }
