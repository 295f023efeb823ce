// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

/// The part of the CUDA driver API that the driver uses (NVIDIA, "CUDA Driver API", version 12), declared here so that
/// building needs no CUDA headers, and loaded at run time so that running needs no CUDA but the NVIDIA driver's
/// library. Functions that have had several signatures are exported under several names; `name` is the one with this
/// signature.
namespace outboard::cuda {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = uint64_t;
using CUcontext = struct ContextHandle*;
using CUmodule = struct ModuleHandle*;
using CUfunction = struct FunctionHandle*;
using CUstream = struct StreamHandle*;
using CUevent = struct EventHandle*;
using CUgraph = struct GraphHandle*;
using CUgraphExec = struct GraphExecHandle*;

enum : CUresult {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_STUB_LIBRARY = 34,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  CUDA_ERROR_ECC_UNCORRECTABLE = 214,
  CUDA_ERROR_INVALID_PTX = 218,
  CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
  CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
  CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_ASSERT = 710,
  CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
  CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
  CUDA_ERROR_MISALIGNED_ADDRESS = 716,
  CUDA_ERROR_INVALID_ADDRESS_SPACE = 717,
  CUDA_ERROR_INVALID_PC = 718,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901
};

enum : int {
  CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
  CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X = 2,  // Y and Z follow
  CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X = 5,   // Y and Z follow
  CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK = 8,
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20,
  CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
  CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
  CU_COMPUTEMODE_PROHIBITED = 2
};

constexpr unsigned CU_STREAM_NON_BLOCKING = 1;
constexpr unsigned CU_EVENT_DEFAULT = 0;
constexpr unsigned CU_MEMHOSTALLOC_PORTABLE = 1;
constexpr int CU_STREAM_CAPTURE_MODE_RELAXED = 2;

/// `X(field, symbol, parameters)` for each function that every driver since CUDA 11.4 has.
#define OUTBOARD_CUDA_FUNCTIONS(X)                                                                                   \
  X(cuInit, "cuInit", (unsigned flags))                                                                              \
  X(cuDriverGetVersion, "cuDriverGetVersion", (int* version))                                                        \
  X(cuGetErrorName, "cuGetErrorName", (CUresult error, const char** name))                                           \
  X(cuGetErrorString, "cuGetErrorString", (CUresult error, const char** text))                                       \
  X(cuDeviceGetCount, "cuDeviceGetCount", (int* count))                                                              \
  X(cuDeviceGet, "cuDeviceGet", (CUdevice * device, int ordinal))                                                    \
  X(cuDeviceGetName, "cuDeviceGetName", (char* name, int bytes, CUdevice device))                                    \
  X(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", (char* text, int bytes, CUdevice device))                            \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int* value, int attribute, CUdevice device))                      \
  X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t* bytes, CUdevice device))                                       \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext * context, CUdevice device))                    \
  X(cuCtxGetCurrent, "cuCtxGetCurrent", (CUcontext * context))                                                       \
  X(cuCtxSetCurrent, "cuCtxSetCurrent", (CUcontext context))                                                         \
  X(cuMemGetInfo, "cuMemGetInfo_v2", (size_t* free, size_t* total))                                                  \
  X(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr * pointer, size_t bytes))                                              \
  X(cuMemFree, "cuMemFree_v2", (CUdeviceptr pointer))                                                                \
  X(cuMemHostAlloc, "cuMemHostAlloc", (void** pointer, size_t bytes, unsigned flags))                                \
  X(cuMemFreeHost, "cuMemFreeHost", (void* pointer))                                                                 \
  X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (CUdeviceptr dst, const void* src, size_t bytes, CUstream stream))    \
  X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void* dst, CUdeviceptr src, size_t bytes, CUstream stream))          \
  X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream))    \
  X(cuMemcpyPeerAsync, "cuMemcpyPeerAsync",                                                                          \
    (CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t bytes, CUstream stream)) \
  X(cuMemsetD8Async, "cuMemsetD8Async", (CUdeviceptr dst, unsigned char value, size_t count, CUstream stream))       \
  X(cuMemsetD16Async, "cuMemsetD16Async", (CUdeviceptr dst, unsigned short value, size_t count, CUstream stream))    \
  X(cuMemsetD32Async, "cuMemsetD32Async", (CUdeviceptr dst, unsigned value, size_t count, CUstream stream))          \
  X(cuMemsetD2D32Async, "cuMemsetD2D32Async",                                                                        \
    (CUdeviceptr dst, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream))                   \
  X(cuStreamCreate, "cuStreamCreate", (CUstream * stream, unsigned flags))                                           \
  X(cuStreamDestroy, "cuStreamDestroy_v2", (CUstream stream))                                                        \
  X(cuStreamSynchronize, "cuStreamSynchronize", (CUstream stream))                                                   \
  X(cuStreamQuery, "cuStreamQuery", (CUstream stream))                                                               \
  X(cuStreamWaitEvent, "cuStreamWaitEvent", (CUstream stream, CUevent event, unsigned flags))                        \
  X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (CUstream stream, int mode))                                    \
  X(cuStreamEndCapture, "cuStreamEndCapture", (CUstream stream, CUgraph * graph))                                    \
  X(cuEventCreate, "cuEventCreate", (CUevent * event, unsigned flags))                                               \
  X(cuEventDestroy, "cuEventDestroy_v2", (CUevent event))                                                            \
  X(cuEventRecord, "cuEventRecord", (CUevent event, CUstream stream))                                                \
  X(cuEventQuery, "cuEventQuery", (CUevent event))                                                                   \
  X(cuEventSynchronize, "cuEventSynchronize", (CUevent event))                                                       \
  X(cuEventElapsedTime, "cuEventElapsedTime", (float* milliseconds, CUevent start, CUevent end))                     \
  X(cuGraphInstantiate, "cuGraphInstantiateWithFlags", (CUgraphExec * executable, CUgraph graph, uint64_t flags))    \
  X(cuGraphLaunch, "cuGraphLaunch", (CUgraphExec executable, CUstream stream))                                       \
  X(cuGraphDestroy, "cuGraphDestroy", (CUgraph graph))                                                               \
  X(cuGraphExecDestroy, "cuGraphExecDestroy", (CUgraphExec executable))                                              \
  X(cuModuleLoadData, "cuModuleLoadData", (CUmodule * module, const void* image))                                    \
  X(cuModuleUnload, "cuModuleUnload", (CUmodule module))                                                             \
  X(cuModuleGetFunction, "cuModuleGetFunction", (CUfunction * function, CUmodule module, const char* name))          \
  X(cuFuncGetAttribute, "cuFuncGetAttribute", (int* value, int attribute, CUfunction function))                      \
  X(cuLaunchKernel, "cuLaunchKernel",                                                                                \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,     \
     unsigned block_z, unsigned shared_bytes, CUstream stream, void** arguments, void** extra))

/// Those that only drivers since CUDA 12.4 have: nullptr where they are not there.
#define OUTBOARD_CUDA_NEW_FUNCTIONS(X)                                           \
  X(cuFuncGetParamInfo, "cuFuncGetParamInfo",                                    \
    (CUfunction function, size_t index, size_t* offset,                          \
     size_t* bytes)) /* CUDA_ERROR_INVALID_VALUE for an index behind the last */ \
  X(cuFuncLoad, "cuFuncLoad", (CUfunction function))

struct Api {
#define OUTBOARD_DECLARE(field, symbol, parameters) CUresult(*field) parameters;
  OUTBOARD_CUDA_FUNCTIONS(OUTBOARD_DECLARE)
  OUTBOARD_CUDA_NEW_FUNCTIONS(OUTBOARD_DECLARE)
#undef OUTBOARD_DECLARE

  /// Loads the library once per process and initializes CUDA. OUTBOARD_CUDA_LIBRARY names another file than
  /// libcuda.so.1. Returns what is wrong and what to do, or an empty text.
  static const std::string& load(const Api** api);
};

/// "CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)".
std::string text_of(const Api& api, CUresult error);

}  // namespace outboard::cuda
