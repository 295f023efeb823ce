// SPDX-License-Identifier: Apache-2.0
#include "simulator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/api.h"
#include "kernels.h"
#include "stream.h"

/// A simulator of the part of the CUDA driver API that the CUDA driver uses, on host memory: no GPU, and no proof of
/// what one does. It is as strict as NVIDIA's manual about contexts, ranges of memory, streams that are captured and
/// host memory that is not page-locked, and fails on request (`cuda_simulator_...` at the end).
using namespace outboard::cuda;
using simulator::Command;
using simulator::Context;
using simulator::entered;
using simulator::entered_context;
using simulator::Event;
using simulator::Graph;
using simulator::lies_in_block;
using simulator::Point;
using simulator::Stream;

namespace {

constexpr int kErrorCapture = 900;  // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
constexpr size_t kMemory = size_t{4} << 30;

struct Failure {
  std::string function;
  int calls_to_come;
  CUresult result;
};

}  // namespace

namespace simulator {

struct Context {
  int device;
  std::mutex mutex;
  std::map<CUdeviceptr, size_t> blocks;
  size_t used = 0;
  CUresult lost = CUDA_SUCCESS;
};

}  // namespace simulator

namespace {

struct State {
  std::mutex mutex;
  std::vector<Failure> failures;
  std::map<std::string, int> calls;
  std::map<std::string, int> live;
  std::map<char*, size_t> pinned;
  std::vector<std::unique_ptr<Context>> contexts;
  bool initialized = false;
};

State& state() {
  static State* const instance = new State;
  return *instance;
}

thread_local Context* current = nullptr;

int device_number() {
  const char* const text = std::getenv("CUDA_SIMULATOR_DEVICES");
  return text != nullptr ? std::atoi(text) : 1;
}

}  // namespace

CUresult simulator::entered(const char* function) {
  const std::lock_guard lock(state().mutex);
  ++state().calls[function];
  auto& failures = state().failures;
  for (auto each = failures.begin(); each != failures.end(); ++each) {
    if (each->function != function || --each->calls_to_come != 0) continue;
    const CUresult result = each->result;
    failures.erase(each);
    return result;
  }
  return state().initialized || std::strcmp(function, "cuInit") == 0 ? CUDA_SUCCESS : 3;  // NOT_INITIALIZED
}

CUresult simulator::entered_context(const char* function) {
  const CUresult result = entered(function);
  if (result != CUDA_SUCCESS) return result;
  if (current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const std::lock_guard lock(current->mutex);
  return current->lost;
}

Context* simulator::current_context() { return current; }

bool simulator::lies_in_block(Context& context, uint64_t pointer, size_t bytes) {
  const std::lock_guard lock(context.mutex);
  auto block = context.blocks.upper_bound(pointer);
  if (block == context.blocks.begin()) return false;
  --block;
  return pointer + bytes <= block->first + block->second;
}

namespace {

/// `entered_context` of a call that puts work into a stream or asks what became of it.
CUresult entered_stream(const char* function, CUstream handle) {
  const CUresult result = entered_context(function);
  if (result != CUDA_SUCCESS) return result;
  auto* const stream = reinterpret_cast<Stream*>(handle);
  if (stream == nullptr || stream->context != current) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture == nullptr) return CUDA_SUCCESS;
  stream->capture_failed = true;
  return kErrorCapture;
}

Stream& stream_of(CUstream handle) { return *reinterpret_cast<Stream*>(handle); }
Event& event_of(CUevent handle) { return *reinterpret_cast<Event*>(handle); }

void count_live(const char* kind, int change) {
  const std::lock_guard lock(state().mutex);
  state().live[kind] += change;
}

bool is_pinned(const void* memory, size_t bytes) {
  const auto* const begin = static_cast<const char*>(memory);
  const std::lock_guard lock(state().mutex);
  for (const auto& [start, size] : state().pinned) {
    if (begin >= start && begin + bytes <= start + size) return true;
  }
  return false;
}

char* at(CUdeviceptr pointer) { return reinterpret_cast<char*>(pointer); }

template <typename T>
CUresult fill(const char* function, CUdeviceptr dst, size_t pitch, T value, size_t width, size_t height,
              CUstream stream) {
  if (const CUresult result = entered_stream(function, stream); result != CUDA_SUCCESS) return result;
  const size_t bytes = height == 0 ? 0 : (height - 1) * pitch + width * sizeof(T);
  if (dst % sizeof(T) != 0 || pitch % sizeof(T) != 0 || (height > 1 && pitch < width * sizeof(T)) ||
      !lies_in_block(*current, dst, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  stream_of(stream).put([=] {
    for (size_t row = 0; row < height; ++row) std::fill_n(reinterpret_cast<T*>(at(dst + row * pitch)), width, value);
  });
  return CUDA_SUCCESS;
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default"))) CUresult

EXPORTED cuInit(unsigned) {
  if (const CUresult result = entered("cuInit"); result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(state().mutex);
  if (device_number() == 0) return CUDA_ERROR_NO_DEVICE;
  state().initialized = true;
  for (int i = static_cast<int>(state().contexts.size()); i < device_number(); ++i) {
    state().contexts.push_back(std::make_unique<Context>());
    state().contexts.back()->device = i;
  }
  return CUDA_SUCCESS;
}

EXPORTED cuDriverGetVersion(int* version) {
  *version = 12040;
  return CUDA_SUCCESS;
}

EXPORTED cuGetErrorName(CUresult error, const char** name) {
  static const std::map<CUresult, const char*> names{{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
                                                     {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                     {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
                                                     {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                                                     {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"}};
  const auto found = names.find(error);
  if (found == names.end()) return CUDA_ERROR_INVALID_VALUE;
  *name = found->second;
  return CUDA_SUCCESS;
}

EXPORTED cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "simulated";
  return CUDA_SUCCESS;
}

EXPORTED cuDeviceGetCount(int* count) {
  *count = device_number();
  return entered("cuDeviceGetCount");
}

EXPORTED cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return entered("cuDeviceGet");
}

EXPORTED cuDeviceGetName(char* name, int bytes, CUdevice) {
  std::strncpy(name, "Simulator of the CUDA API", static_cast<size_t>(bytes));
  return entered("cuDeviceGetName");
}

EXPORTED cuDeviceGetPCIBusId(char* text, int bytes, CUdevice device) {
  std::snprintf(text, static_cast<size_t>(bytes), "0000:%02x:00.0", static_cast<unsigned>(device) + 1);
  return entered("cuDeviceGetPCIBusId");
}

EXPORTED cuDeviceGetAttribute(int* value, int attribute, CUdevice) {
  static const std::map<int, int> values{
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024}, {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + 1, 1024},   {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + 2, 64},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},  {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + 1, 65535},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + 2, 65535},   {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},     {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 4 << 20},      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 8},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 6}};
  const auto found = values.find(attribute);
  if (found == values.end()) return CUDA_ERROR_INVALID_VALUE;
  *value = found->second;
  return entered("cuDeviceGetAttribute");
}

EXPORTED cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  *bytes = kMemory;
  return entered("cuDeviceTotalMem");
}

EXPORTED cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (const CUresult result = entered("cuDevicePrimaryCtxRetain"); result != CUDA_SUCCESS) return result;
  *context = reinterpret_cast<CUcontext>(state().contexts.at(static_cast<size_t>(device)).get());
  return CUDA_SUCCESS;
}

EXPORTED cuCtxGetCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(current);
  return CUDA_SUCCESS;
}

EXPORTED cuCtxSetCurrent(CUcontext context) {
  current = reinterpret_cast<Context*>(context);
  return CUDA_SUCCESS;
}

EXPORTED cuMemGetInfo_v2(size_t* free, size_t* total) {
  if (const CUresult result = entered_context("cuMemGetInfo"); result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(current->mutex);
  *free = kMemory - current->used;
  *total = kMemory;
  return CUDA_SUCCESS;
}

EXPORTED cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  if (const CUresult result = entered_context("cuMemAlloc"); result != CUDA_SUCCESS) return result;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(current->mutex);
  if (bytes > kMemory - current->used) return CUDA_ERROR_OUT_OF_MEMORY;
  void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(memory, 0xff, bytes);  // NaN, or -1, to whoever forgets to write
  *pointer = reinterpret_cast<CUdeviceptr>(memory);
  current->blocks[*pointer] = bytes;
  current->used += bytes;
  return CUDA_SUCCESS;
}

EXPORTED cuMemFree_v2(CUdeviceptr pointer) {
  if (const CUresult result = entered_context("cuMemFree"); result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(current->mutex);
  const auto block = current->blocks.find(pointer);
  if (block == current->blocks.end()) return CUDA_ERROR_INVALID_VALUE;
  current->used -= block->second;
  current->blocks.erase(block);
  std::free(at(pointer));
  return CUDA_SUCCESS;
}

EXPORTED cuMemHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  if (const CUresult result = entered_context("cuMemHostAlloc"); result != CUDA_SUCCESS) return result;
  if (flags != CU_MEMHOSTALLOC_PORTABLE) return CUDA_ERROR_INVALID_VALUE;
  *pointer = std::malloc(bytes);
  const std::lock_guard lock(state().mutex);
  state().pinned[static_cast<char*>(*pointer)] = bytes;
  return CUDA_SUCCESS;
}

EXPORTED cuMemFreeHost(void* pointer) {
  if (const CUresult result = entered_context("cuMemFreeHost"); result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(state().mutex);
  if (state().pinned.erase(static_cast<char*>(pointer)) == 0) return CUDA_ERROR_INVALID_VALUE;
  std::free(pointer);
  return CUDA_SUCCESS;
}

EXPORTED cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, size_t bytes, CUstream stream) {
  if (const CUresult result = entered_stream("cuMemcpyHtoDAsync", stream); result != CUDA_SUCCESS) return result;
  if (!lies_in_block(*current, dst, bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (is_pinned(src, bytes)) {
    stream_of(stream).put([=] { std::memcpy(at(dst), src, bytes); });
    return CUDA_SUCCESS;
  }
  const auto staged =
      std::make_shared<std::vector<char>>(static_cast<const char*>(src), static_cast<const char*>(src) + bytes);
  stream_of(stream).put([=] { std::memcpy(at(dst), staged->data(), bytes); });
  return CUDA_SUCCESS;
}

EXPORTED cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  if (const CUresult result = entered_stream("cuMemcpyDtoHAsync", stream); result != CUDA_SUCCESS) return result;
  if (!lies_in_block(*current, src, bytes)) return CUDA_ERROR_INVALID_VALUE;
  stream_of(stream).put([=] { std::memcpy(dst, at(src), bytes); });
  if (!is_pinned(dst, bytes)) stream_of(stream).wait();
  return CUDA_SUCCESS;
}

EXPORTED cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  if (const CUresult result = entered_stream("cuMemcpyDtoDAsync", stream); result != CUDA_SUCCESS) return result;
  const bool overlap = dst < src + bytes && src < dst + bytes;
  if (overlap || !lies_in_block(*current, dst, bytes) || !lies_in_block(*current, src, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  stream_of(stream).put([=] { std::memcpy(at(dst), at(src), bytes); });
  return CUDA_SUCCESS;
}

EXPORTED cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t bytes,
                           CUstream stream) {
  if (const CUresult result = entered_stream("cuMemcpyPeerAsync", stream); result != CUDA_SUCCESS) return result;
  if (dst_context == nullptr || src_context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!lies_in_block(*reinterpret_cast<Context*>(dst_context), dst, bytes) ||
      !lies_in_block(*reinterpret_cast<Context*>(src_context), src, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  stream_of(stream).put([=] { std::memcpy(at(dst), at(src), bytes); });
  return CUDA_SUCCESS;
}

EXPORTED cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream) {
  return fill("cuMemsetD8Async", dst, 0, value, count, 1, stream);
}

EXPORTED cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t count, CUstream stream) {
  return fill("cuMemsetD16Async", dst, 0, value, count, 1, stream);
}

EXPORTED cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t count, CUstream stream) {
  return fill("cuMemsetD32Async", dst, 0, value, count, 1, stream);
}

EXPORTED cuMemsetD2D32Async(CUdeviceptr dst, size_t pitch, unsigned value, size_t width, size_t height,
                            CUstream stream) {
  return fill("cuMemsetD2D32Async", dst, pitch, value, width, height, stream);
}

EXPORTED cuStreamCreate(CUstream* stream, unsigned flags) {
  if (const CUresult result = entered_context("cuStreamCreate"); result != CUDA_SUCCESS) return result;
  if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  *stream = reinterpret_cast<CUstream>(new Stream(current));
  count_live("stream", 1);
  return CUDA_SUCCESS;
}

EXPORTED cuStreamDestroy_v2(CUstream stream) {
  if (const CUresult result = entered_context("cuStreamDestroy"); result != CUDA_SUCCESS) return result;
  delete &stream_of(stream);
  count_live("stream", -1);
  return CUDA_SUCCESS;
}

EXPORTED cuStreamSynchronize(CUstream stream) {
  if (const CUresult result = entered_stream("cuStreamSynchronize", stream); result != CUDA_SUCCESS) return result;
  stream_of(stream).wait();
  const std::lock_guard lock(current->mutex);
  return current->lost;
}

EXPORTED cuStreamQuery(CUstream stream) {
  if (const CUresult result = entered_stream("cuStreamQuery", stream); result != CUDA_SUCCESS) return result;
  return stream_of(stream).idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORTED cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  if (const CUresult result = entered_stream("cuStreamWaitEvent", stream); result != CUDA_SUCCESS) return result;
  if (const auto point = event_of(event).last()) stream_of(stream).put([point] { point->wait(); });
  return CUDA_SUCCESS;
}

EXPORTED cuStreamBeginCapture_v2(CUstream stream, int mode) {
  if (const CUresult result = entered_stream("cuStreamBeginCapture", stream); result != CUDA_SUCCESS) return result;
  if (mode != CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  stream_of(stream).capture = std::make_unique<Graph>(Graph{current, {}});
  stream_of(stream).capture_failed = false;
  return CUDA_SUCCESS;
}

EXPORTED cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  if (const CUresult result = entered_context("cuStreamEndCapture"); result != CUDA_SUCCESS) return result;
  std::unique_ptr<Graph> captured = std::move(stream_of(stream).capture);
  if (captured == nullptr) return 401;  // CUDA_ERROR_ILLEGAL_STATE
  *graph = nullptr;
  if (stream_of(stream).capture_failed) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  *graph = reinterpret_cast<CUgraph>(captured.release());
  count_live("graph", 1);
  return CUDA_SUCCESS;
}

EXPORTED cuEventCreate(CUevent* event, unsigned flags) {
  if (const CUresult result = entered_context("cuEventCreate"); result != CUDA_SUCCESS) return result;
  if (flags != CU_EVENT_DEFAULT) return CUDA_ERROR_INVALID_VALUE;  // others have no time
  *event = reinterpret_cast<CUevent>(new Event{current, {}, nullptr});
  count_live("event", 1);
  return CUDA_SUCCESS;
}

EXPORTED cuEventDestroy_v2(CUevent event) {
  if (const CUresult result = entered_context("cuEventDestroy"); result != CUDA_SUCCESS) return result;
  delete &event_of(event);
  count_live("event", -1);
  return CUDA_SUCCESS;
}

EXPORTED cuEventRecord(CUevent event, CUstream stream) {
  if (const CUresult result = entered_stream("cuEventRecord", stream); result != CUDA_SUCCESS) return result;
  if (event_of(event).context != stream_of(stream).context) return CUDA_ERROR_INVALID_HANDLE;
  const auto point = std::make_shared<Point>();
  {
    const std::lock_guard lock(event_of(event).mutex);
    event_of(event).point = point;
  }
  stream_of(stream).put([point] { point->reach(); });
  return CUDA_SUCCESS;
}

EXPORTED cuEventQuery(CUevent event) {
  if (const CUresult result = entered_context("cuEventQuery"); result != CUDA_SUCCESS) return result;
  const auto point = event_of(event).last();
  return point == nullptr || point->reached() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORTED cuEventSynchronize(CUevent event) {
  if (const CUresult result = entered_context("cuEventSynchronize"); result != CUDA_SUCCESS) return result;
  if (const auto point = event_of(event).last()) point->wait();
  return CUDA_SUCCESS;
}

EXPORTED cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  if (const CUresult result = entered_context("cuEventElapsedTime"); result != CUDA_SUCCESS) return result;
  const auto from = event_of(start).last(), to = event_of(end).last();
  if (from == nullptr || to == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!from->reached() || !to->reached()) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>(static_cast<double>(to->nanoseconds - from->nanoseconds) * 1e-6);
  return CUDA_SUCCESS;
}

EXPORTED cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, uint64_t) {
  if (const CUresult result = entered_context("cuGraphInstantiate"); result != CUDA_SUCCESS) return result;
  *executable = reinterpret_cast<CUgraphExec>(new Graph(*reinterpret_cast<Graph*>(graph)));
  count_live("executable", 1);
  return CUDA_SUCCESS;
}

EXPORTED cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  if (const CUresult result = entered_stream("cuGraphLaunch", stream); result != CUDA_SUCCESS) return result;
  for (const Command& command : reinterpret_cast<Graph*>(executable)->commands) stream_of(stream).put(command);
  return CUDA_SUCCESS;
}

EXPORTED cuGraphDestroy(CUgraph graph) {
  if (const CUresult result = entered("cuGraphDestroy"); result != CUDA_SUCCESS) return result;
  delete reinterpret_cast<Graph*>(graph);
  count_live("graph", -1);
  return CUDA_SUCCESS;
}

EXPORTED cuGraphExecDestroy(CUgraphExec executable) {
  if (const CUresult result = entered("cuGraphExecDestroy"); result != CUDA_SUCCESS) return result;
  delete reinterpret_cast<Graph*>(executable);
  count_live("executable", -1);
  return CUDA_SUCCESS;
}

EXPORTED cuModuleLoadData(CUmodule* module, const void* image) {
  if (const CUresult result = entered_context("cuModuleLoadData"); result != CUDA_SUCCESS) return result;
  std::string why;
  std::unique_ptr<simulator::Program> program = simulator::build(static_cast<const char*>(image), &why);
  if (program == nullptr) return CUDA_ERROR_INVALID_IMAGE;
  *module = reinterpret_cast<CUmodule>(program.release());
  count_live("module", 1);
  return CUDA_SUCCESS;
}

EXPORTED cuModuleUnload(CUmodule module) {
  if (const CUresult result = entered_context("cuModuleUnload"); result != CUDA_SUCCESS) return result;
  delete reinterpret_cast<simulator::Program*>(module);
  count_live("module", -1);
  return CUDA_SUCCESS;
}

EXPORTED cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  if (const CUresult result = entered_context("cuModuleGetFunction"); result != CUDA_SUCCESS) return result;
  for (const auto& kernel : reinterpret_cast<simulator::Program*>(module)->kernels) {
    if (kernel->name != name) continue;
    *function = reinterpret_cast<CUfunction>(kernel.get());
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

EXPORTED cuFuncGetAttribute(int* value, int attribute, CUfunction function) {
  if (const CUresult result = entered_context("cuFuncGetAttribute"); result != CUDA_SUCCESS) return result;
  const bool items = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
  *value = items ? 1024 : static_cast<int>(reinterpret_cast<simulator::Kernel*>(function)->local_bytes);
  return CUDA_SUCCESS;
}

EXPORTED cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* bytes) {
  const auto& sizes = reinterpret_cast<simulator::Kernel*>(function)->sizes;
  if (index >= sizes.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = 0;
  *bytes = sizes[index];
  return entered_context("cuFuncGetParamInfo");
}

EXPORTED cuFuncLoad(CUfunction) { return entered_context("cuFuncLoad"); }

EXPORTED cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream handle, void** arguments,
                        void** extra) {
  if (const CUresult result = entered_context("cuLaunchKernel"); result != CUDA_SUCCESS) return result;
  Stream& stream = stream_of(handle);
  if (stream.context != current) return CUDA_ERROR_INVALID_HANDLE;
  const bool fits = grid_x > 0 && grid_y > 0 && grid_z > 0 && grid_y <= 65535 && grid_z <= 65535 && block_z <= 64 &&
                    uint64_t{block_x} * block_y * block_z <= 1024 && shared == 0 && extra == nullptr;
  if (!fits) return CUDA_ERROR_INVALID_VALUE;
  const simulator::Kernel kernel = *reinterpret_cast<simulator::Kernel*>(function);
  std::vector<std::vector<char>> values;
  for (size_t i = 0; i < kernel.sizes.size(); ++i) {
    const char* const value = static_cast<const char*>(arguments[i]);
    values.emplace_back(value, value + kernel.sizes[i]);
  }
  const Command command = [=, context = current] {
    const unsigned groups[3] = {grid_x, grid_y, grid_z}, items[3] = {block_x, block_y, block_z};
    if (simulator::run(kernel, groups, items, values)) return;
    const std::lock_guard lock(context->mutex);
    context->lost = CUDA_ERROR_LAUNCH_FAILED;
  };
  if (stream.capture != nullptr) {
    stream.capture->commands.push_back(command);
  } else {
    stream.put(command);
  }
  return CUDA_SUCCESS;
}

// ---- for tests ----

/// Makes the nth next call of a function (without its version) fail.
extern "C" __attribute__((visibility("default"))) void cuda_simulator_fail(const char* function, int nth,
                                                                           CUresult result) {
  const std::lock_guard lock(state().mutex);
  state().failures.push_back({function, nth, result});
}

/// From now on, all that a device's context is asked for fails.
extern "C" __attribute__((visibility("default"))) void cuda_simulator_lose(int device, CUresult result) {
  Context& context = *state().contexts.at(static_cast<size_t>(device));
  const std::lock_guard lock(context.mutex);
  context.lost = result;
}

/// How often a function was called.
extern "C" __attribute__((visibility("default"))) int cuda_simulator_calls(const char* function) {
  const std::lock_guard lock(state().mutex);
  return state().calls[function];
}

/// How many "stream", "event", "graph", "executable" or "module" there are.
extern "C" __attribute__((visibility("default"))) int cuda_simulator_live(const char* kind) {
  const std::lock_guard lock(state().mutex);
  return state().live[kind];
}

/// 1: all streams stop before their next command. 0: they go on.
extern "C" __attribute__((visibility("default"))) void cuda_simulator_hold(int held) { Stream::hold(held != 0); }
