// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

/// The part of the OpenCL C API that the driver uses (Khronos OpenCL 3.0 specification), declared here so that
/// building needs no OpenCL headers, and loaded at run time so that running needs no OpenCL library.
namespace outboard::opencl {

using cl_int = int32_t;
using cl_uint = uint32_t;
using cl_ulong = uint64_t;
using cl_bool = cl_uint;
using cl_bitfield = cl_ulong;
using cl_platform_id = struct PlatformHandle*;
using cl_device_id = struct DeviceHandle*;
using cl_context = struct ContextHandle*;
using cl_command_queue = struct QueueHandle*;
using cl_program = struct ProgramHandle*;
using cl_kernel = struct KernelHandle*;
using cl_event = struct EventHandle*;
using cl_property = intptr_t;
using cl_command_buffer_khr = struct CommandBufferHandle*;

enum : cl_int {
  CL_SUCCESS = 0,
  CL_DEVICE_NOT_AVAILABLE = -2,
  CL_MEM_OBJECT_ALLOCATION_FAILURE = -4,
  CL_OUT_OF_RESOURCES = -5,
  CL_OUT_OF_HOST_MEMORY = -6,
  CL_BUILD_PROGRAM_FAILURE = -11,
  CL_INVALID_VALUE = -30,  // this code and those below it: the caller is wrong
  CL_INVALID_KERNEL_NAME = -46
};

enum : cl_uint {
  CL_COMPLETE = 0,
  CL_PLATFORM_VERSION = 0x0901,
  CL_PLATFORM_NAME = 0x0902,
  CL_DEVICE_TYPE = 0x1000,
  CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002,
  CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004,
  CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT = 0x100A,
  CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010,
  CL_DEVICE_MAX_PARAMETER_SIZE = 0x1017,
  CL_DEVICE_GLOBAL_MEM_CACHE_SIZE = 0x101E,
  CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F,
  CL_DEVICE_LOCAL_MEM_SIZE = 0x1023,
  CL_DEVICE_MEM_BASE_ADDR_ALIGN = 0x1019,
  CL_DEVICE_NAME = 0x102B,
  CL_DEVICE_VENDOR = 0x102C,
  CL_DRIVER_VERSION = 0x102D,
  CL_DEVICE_EXTENSIONS = 0x1030,
  CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT = 0x103A,
  CL_DEVICE_SVM_CAPABILITIES = 0x1053,
  CL_QUEUE_PROPERTIES = 0x1093,
  CL_PROGRAM_BINARY_SIZES = 0x1165,
  CL_PROGRAM_BINARIES = 0x1166,
  CL_PROGRAM_BUILD_LOG = 0x1183,
  CL_KERNEL_NUM_ARGS = 0x1191,
  CL_KERNEL_ARG_ADDRESS_QUALIFIER = 0x1196,
  CL_KERNEL_ARG_ADDRESS_PRIVATE = 0x119E,
  CL_KERNEL_WORK_GROUP_SIZE = 0x11B0,
  CL_KERNEL_LOCAL_MEM_SIZE = 0x11B2,
  CL_EVENT_COMMAND_EXECUTION_STATUS = 0x11D3,
  CL_PROFILING_COMMAND_END = 0x1283,
  CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE = 0x2033,
  CL_DEVICE_SUB_GROUP_SIZES_INTEL = 0x4108,
  CL_DEVICE_COMMAND_BUFFER_CAPABILITIES_KHR = 0x12A9,
  CL_DEVICE_COMMAND_BUFFER_REQUIRED_QUEUE_PROPERTIES_KHR = 0x12AA
};

constexpr cl_bitfield CL_DEVICE_TYPE_CPU = 1 << 1;
constexpr cl_bitfield CL_DEVICE_TYPE_GPU = 1 << 2;
constexpr cl_bitfield CL_DEVICE_TYPE_ALL = 0xFFFFFFFF;
constexpr cl_bitfield CL_QUEUE_PROFILING_ENABLE = 1 << 1;
constexpr cl_bitfield CL_DEVICE_SVM_COARSE_GRAIN_BUFFER = 1 << 0;
constexpr cl_bitfield CL_DEVICE_SVM_FINE_GRAIN_BUFFER = 1 << 1;
constexpr cl_bitfield CL_DEVICE_SVM_FINE_GRAIN_SYSTEM = 1 << 2;
constexpr cl_bitfield CL_MEM_READ_WRITE = 1 << 0;
constexpr cl_bitfield CL_MEM_SVM_FINE_GRAIN_BUFFER = 1 << 10;
constexpr cl_property CL_DEVICE_PARTITION_EQUALLY = 0x1086;
constexpr cl_bitfield CL_COMMAND_BUFFER_CAPABILITY_SIMULTANEOUS_USE_KHR = 1 << 2;
constexpr cl_bitfield CL_COMMAND_BUFFER_FLAGS_KHR = 0x1293;
constexpr cl_bitfield CL_COMMAND_BUFFER_SIMULTANEOUS_USE_KHR = 1 << 0;

/// The loaded entry points.
struct Api {
  cl_int (*clGetPlatformIDs)(cl_uint, cl_platform_id*, cl_uint*);
  cl_int (*clGetPlatformInfo)(cl_platform_id, cl_uint, size_t, void*, size_t*);
  cl_int (*clGetDeviceIDs)(cl_platform_id, cl_bitfield, cl_uint, cl_device_id*, cl_uint*);
  cl_int (*clGetDeviceInfo)(cl_device_id, cl_uint, size_t, void*, size_t*);
  cl_int (*clCreateSubDevices)(cl_device_id, const cl_property*, cl_uint, cl_device_id*, cl_uint*);
  cl_context (*clCreateContext)(const cl_property*, cl_uint, const cl_device_id*, void*, void*, cl_int*);
  cl_command_queue (*clCreateCommandQueueWithProperties)(cl_context, cl_device_id, const cl_bitfield*, cl_int*);
  cl_int (*clReleaseCommandQueue)(cl_command_queue);
  void* (*clSVMAlloc)(cl_context, cl_bitfield, size_t, cl_uint);
  void (*clSVMFree)(cl_context, void*);
  cl_int (*clEnqueueSVMMemcpy)(cl_command_queue, cl_bool, void*, const void*, size_t, cl_uint, const cl_event*,
                               cl_event*);
  cl_int (*clEnqueueSVMMemFill)(cl_command_queue, void*, const void*, size_t, size_t, cl_uint, const cl_event*,
                                cl_event*);
  cl_program (*clCreateProgramWithSource)(cl_context, cl_uint, const char**, const size_t*, cl_int*);
  cl_program (*clCreateProgramWithBinary)(cl_context, cl_uint, const cl_device_id*, const size_t*,
                                          const unsigned char**, cl_int*, cl_int*);
  cl_int (*clBuildProgram)(cl_program, cl_uint, const cl_device_id*, const char*, void*, void*);
  cl_int (*clGetProgramBuildInfo)(cl_program, cl_device_id, cl_uint, size_t, void*, size_t*);
  cl_int (*clGetProgramInfo)(cl_program, cl_uint, size_t, void*, size_t*);
  cl_int (*clReleaseProgram)(cl_program);
  cl_kernel (*clCreateKernel)(cl_program, const char*, cl_int*);
  cl_int (*clReleaseKernel)(cl_kernel);
  /// nullptr before OpenCL 2.1
  cl_int (*clGetKernelSubGroupInfo)(cl_kernel, cl_device_id, cl_uint, size_t, const void*, size_t, void*, size_t*);
  cl_int (*clGetKernelInfo)(cl_kernel, cl_uint, size_t, void*, size_t*);
  cl_int (*clGetKernelArgInfo)(cl_kernel, cl_uint, cl_uint, size_t, void*, size_t*);
  cl_int (*clGetKernelWorkGroupInfo)(cl_kernel, cl_device_id, cl_uint, size_t, void*, size_t*);
  cl_int (*clSetKernelArg)(cl_kernel, cl_uint, size_t, const void*);
  cl_int (*clSetKernelArgSVMPointer)(cl_kernel, cl_uint, const void*);
  cl_int (*clEnqueueNDRangeKernel)(cl_command_queue, cl_kernel, cl_uint, const size_t*, const size_t*, const size_t*,
                                   cl_uint, const cl_event*, cl_event*);
  cl_int (*clEnqueueMarkerWithWaitList)(cl_command_queue, cl_uint, const cl_event*, cl_event*);
  cl_int (*clEnqueueBarrierWithWaitList)(cl_command_queue, cl_uint, const cl_event*, cl_event*);
  cl_int (*clFlush)(cl_command_queue);
  cl_int (*clFinish)(cl_command_queue);
  cl_int (*clWaitForEvents)(cl_uint, const cl_event*);
  cl_int (*clGetEventInfo)(cl_event, cl_uint, size_t, void*, size_t*);
  cl_int (*clGetEventProfilingInfo)(cl_event, cl_uint, size_t, void*, size_t*);
  cl_int (*clRetainEvent)(cl_event);
  cl_int (*clReleaseEvent)(cl_event);
  void* (*clGetExtensionFunctionAddressForPlatform)(cl_platform_id, const char*);

  /// Opens the ICD loader (OUTBOARD_OPENCL_LIBRARY, else libOpenCL.so.1, libOpenCL.so). Returns a message that
  /// says what to install if it is missing, else an empty string. Loads once.
  static const char* load(const Api** api);
};

/// The part of the extension cl_khr_command_buffer that the driver uses.
struct CommandBufferApi {
  cl_command_buffer_khr (*clCreateCommandBufferKHR)(cl_uint, const cl_command_queue*, const cl_bitfield*, cl_int*);
  cl_int (*clFinalizeCommandBufferKHR)(cl_command_buffer_khr);
  cl_int (*clReleaseCommandBufferKHR)(cl_command_buffer_khr);
  cl_int (*clEnqueueCommandBufferKHR)(cl_uint, cl_command_queue*, cl_command_buffer_khr, cl_uint, const cl_event*,
                                      cl_event*);
  cl_int (*clCommandNDRangeKernelKHR)(cl_command_buffer_khr, cl_command_queue, const cl_bitfield*, cl_kernel, cl_uint,
                                      const size_t*, const size_t*, const size_t*, cl_uint, const cl_uint*, cl_uint*,
                                      void*);

  /// False if the platform lacks one of them.
  bool load(const Api& api, cl_platform_id platform);
};

}  // namespace outboard::opencl
