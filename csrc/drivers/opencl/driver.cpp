// SPDX-License-Identifier: Apache-2.0
#include "outboard/driver.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

#include "opencl/cl_api.h"

/// The OpenCL driver: shared virtual memory for device memory, one context per device, in-order queues.
using namespace outboard::opencl;  // the C API's own names

struct ob_device_t {
  cl_device_id id;
  cl_context context;
  bool is_cpu;
  cl_bitfield svm;
  std::string platform;
};

struct ob_stream_t {
  ob_device device;
  cl_command_queue queue;
  std::atomic<bool> outstanding{false};
};

struct ob_event_t {
  ob_device device;
  std::mutex mutex;
  cl_event marker = nullptr;
};

struct ob_kernel_t {
  cl_kernel kernel;
  std::mutex mutex;  // OpenCL keeps arguments in the kernel object
};

struct ob_program_t {
  ob_device device;
  cl_program program;
  std::mutex mutex;
  std::unordered_map<std::string, std::unique_ptr<ob_kernel_t>> kernels;
};

namespace {

const Api* cl = nullptr;
thread_local std::string error_text;

const char* last_error() { return error_text.c_str(); }

ob_status fail(ob_status status, const std::string& text) {
  error_text = text;
  return status;
}

const char* meaning(cl_int code) {
  switch (code) {
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
      return "memory object allocation failure";
    case CL_OUT_OF_RESOURCES:
      return "out of resources";
    case CL_OUT_OF_HOST_MEMORY:
      return "out of host memory";
    default:
      return "see the OpenCL specification for this code";
  }
}

ob_status status_of(cl_int code, const char* function) {
  if (code == CL_SUCCESS) return OB_OK;
  const std::string text = std::string(function) + " returned " + std::to_string(code) + " (" + meaning(code) + ")";
  const bool memory = code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_HOST_MEMORY;
  return fail(memory ? OB_OUT_OF_MEMORY : OB_INTERNAL, text);
}

template <typename T>
T device_value(cl_device_id id, cl_uint what, T fallback) {
  T value = fallback;
  return cl->clGetDeviceInfo(id, what, sizeof(T), &value, nullptr) == CL_SUCCESS ? value : fallback;
}

std::string device_text(cl_device_id id, cl_uint what) {
  size_t bytes = 0;
  if (cl->clGetDeviceInfo(id, what, 0, nullptr, &bytes) != CL_SUCCESS || bytes == 0) return {};
  std::string text(bytes, '\0');
  cl->clGetDeviceInfo(id, what, bytes, text.data(), nullptr);
  text.resize(std::strlen(text.c_str()));
  return text;
}

std::string platform_text(cl_platform_id id, cl_uint what) {
  size_t bytes = 0;
  if (cl->clGetPlatformInfo(id, what, 0, nullptr, &bytes) != CL_SUCCESS || bytes == 0) return {};
  std::string text(bytes, '\0');
  cl->clGetPlatformInfo(id, what, bytes, text.data(), nullptr);
  text.resize(std::strlen(text.c_str()));
  return text;
}

/// How many devices OUTBOARD_NUM_DEVICES asks of one CPU device (1 if unset).
unsigned wanted_parts() {
  const char* text = std::getenv("OUTBOARD_NUM_DEVICES");
  const long parts = text == nullptr ? 1 : std::strtol(text, nullptr, 10);
  return parts < 1 ? 1u : static_cast<unsigned>(parts);
}

/// Splits a CPU device; where its runtime cannot, the same device stands for each part.
std::vector<cl_device_id> split(cl_device_id id, unsigned parts) {
  if (parts == 1) return {id};
  const cl_uint units = device_value<cl_uint>(id, CL_DEVICE_MAX_COMPUTE_UNITS, 1);
  std::vector<cl_device_id> made(parts, id);
  if (units < parts) return made;
  const cl_property properties[] = {CL_DEVICE_PARTITION_EQUALLY, static_cast<cl_property>(units / parts), 0};
  cl_uint count = 0;
  if (cl->clCreateSubDevices(id, properties, 0, nullptr, &count) != CL_SUCCESS || count < parts) return made;
  std::vector<cl_device_id> all(count);
  if (cl->clCreateSubDevices(id, properties, count, all.data(), nullptr) != CL_SUCCESS) return made;
  all.resize(parts);
  return all;
}

struct Devices {
  std::vector<std::unique_ptr<ob_device_t>> list;
  std::string problem;

  Devices() {
    problem = Api::load(&cl);
    if (!problem.empty()) return;
    cl_uint count = 0;
    if (cl->clGetPlatformIDs(0, nullptr, &count) != CL_SUCCESS || count == 0) {
      problem =
          "the OpenCL loader found no platform. Install an OpenCL runtime (Debian and Ubuntu: 'apt install "
          "pocl-opencl-icd'; or 'pip install intel-opencl-rt intel-cmplr-lib-rt'; or your GPU vendor's driver) and "
          "check /etc/OpenCL/vendors or OCL_ICD_VENDORS.";
      return;
    }
    std::vector<cl_platform_id> platforms(count);
    cl->clGetPlatformIDs(count, platforms.data(), nullptr);
    for (cl_platform_id platform : platforms) add_platform(platform);
    if (list.empty() && problem.empty()) problem = "no OpenCL platform has a usable device";
  }

  void add_platform(cl_platform_id platform) {
    cl_uint count = 0;
    if (cl->clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count) != CL_SUCCESS) return;
    std::vector<cl_device_id> ids(count);
    cl->clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, ids.data(), nullptr);
    const std::string name =
        platform_text(platform, CL_PLATFORM_NAME) + " " + platform_text(platform, CL_PLATFORM_VERSION);
    for (cl_device_id id : ids) {
      const bool is_cpu = (device_value<cl_bitfield>(id, CL_DEVICE_TYPE, 0) & CL_DEVICE_TYPE_CPU) != 0;
      for (cl_device_id part : split(id, is_cpu ? wanted_parts() : 1)) add_device(part, is_cpu, name);
    }
  }

  void add_device(cl_device_id id, bool is_cpu, const std::string& platform) {
    const auto svm = device_value<cl_bitfield>(id, CL_DEVICE_SVM_CAPABILITIES, 0);
    if ((svm & (CL_DEVICE_SVM_COARSE_GRAIN_BUFFER | CL_DEVICE_SVM_FINE_GRAIN_BUFFER)) == 0) {
      problem = device_text(id, CL_DEVICE_NAME) + " has no shared virtual memory (OpenCL 2.0), which is needed";
      return;
    }
    cl_int code = CL_SUCCESS;
    cl_context context = cl->clCreateContext(nullptr, 1, &id, nullptr, nullptr, &code);
    if (context == nullptr) {
      problem = device_text(id, CL_DEVICE_NAME) + ": clCreateContext returned " + std::to_string(code);
      return;
    }
    list.push_back(std::make_unique<ob_device_t>(ob_device_t{id, context, is_cpu, svm, platform}));
  }
};

Devices& devices() {
  static Devices* const instance = new Devices;  // leaked: queued work may outlive static destructors
  return *instance;
}

ob_status device_count(uint32_t* count) {
  *count = static_cast<uint32_t>(devices().list.size());
  if (*count == 0) error_text = devices().problem;
  return OB_OK;
}

ob_status device_open(uint32_t index, ob_device* device) {
  if (index >= devices().list.size()) return fail(OB_INVALID_ARGUMENT, "no OpenCL device " + std::to_string(index));
  *device = devices().list[index].get();
  return OB_OK;
}

template <size_t size>
void put_text(char (&target)[size], const std::string& text) {
  std::snprintf(target, size, "%s", text.c_str());
}

bool has_extension(cl_device_id id, const char* name) {
  const std::string all = " " + device_text(id, CL_DEVICE_EXTENSIONS) + " ";
  return all.find(" " + std::string(name) + " ") != std::string::npos;
}

ob_status device_properties(ob_device device, ob_device_properties* properties) {
  ob_device_properties p{};
  const cl_device_id id = device->id;
  p.struct_size = sizeof(p);
  const std::string name = device_text(id, CL_DEVICE_NAME), driver = device_text(id, CL_DRIVER_VERSION);
  put_text(p.name, name);
  put_text(p.vendor, device_text(id, CL_DEVICE_VENDOR));
  put_text(p.driver_version, device->platform + ", driver " + driver);
  put_text(p.dialect, "opencl-c");
  put_text(p.cache_key, name + "|" + driver + "|" + device->platform + "|" +
                            std::to_string(device_value<cl_uint>(id, CL_DEVICE_MAX_COMPUTE_UNITS, 1)));
  const auto type = device_value<cl_bitfield>(id, CL_DEVICE_TYPE, 0);
  p.type = device->is_cpu ? OB_DEVICE_CPU : (type & CL_DEVICE_TYPE_GPU) != 0 ? OB_DEVICE_GPU : OB_DEVICE_ACCELERATOR;
  p.compute_units = device_value<cl_uint>(id, CL_DEVICE_MAX_COMPUTE_UNITS, 1);
  p.max_work_group_size = static_cast<uint32_t>(device_value<size_t>(id, CL_DEVICE_MAX_WORK_GROUP_SIZE, 1));
  p.sub_group_size = 1;
  p.vector_width = device->is_cpu ? device_value<cl_uint>(id, CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT, 1) : 1;
  p.total_memory = device_value<cl_ulong>(id, CL_DEVICE_GLOBAL_MEM_SIZE, 0);
  p.max_allocation = device_value<cl_ulong>(id, CL_DEVICE_MAX_MEM_ALLOC_SIZE, 0);
  p.local_memory = device_value<cl_ulong>(id, CL_DEVICE_LOCAL_MEM_SIZE, 0);
  p.alignment = device_value<cl_uint>(id, CL_DEVICE_MEM_BASE_ADDR_ALIGN, 1024) / 8;
  p.host_accessible = device->is_cpu ? 1 : 0;
  p.has_fp16 = has_extension(id, "cl_khr_fp16") ? 1 : 0;
  p.has_fp64 = has_extension(id, "cl_khr_fp64") ? 1 : 0;
  p.has_int64_atomics = has_extension(id, "cl_khr_int64_base_atomics") ? 1 : 0;
  const size_t size = properties->struct_size;
  std::memcpy(properties, &p, size < sizeof(p) ? size : sizeof(p));
  properties->struct_size = size;
  return OB_OK;
}

ob_status memory_alloc(ob_device device, uint64_t bytes, ob_ptr* ptr) {
  const bool fine = (device->svm & CL_DEVICE_SVM_FINE_GRAIN_BUFFER) != 0;
  const cl_bitfield flags = CL_MEM_READ_WRITE | (fine ? CL_MEM_SVM_FINE_GRAIN_BUFFER : 0);
  void* memory = cl->clSVMAlloc(device->context, flags, bytes, 0);
  if (memory == nullptr) return fail(OB_OUT_OF_MEMORY, "clSVMAlloc of " + std::to_string(bytes) + " bytes failed");
  *ptr = reinterpret_cast<ob_ptr>(memory);
  return OB_OK;
}

ob_status memory_free(ob_device device, ob_ptr ptr) {
  cl->clSVMFree(device->context, reinterpret_cast<void*>(ptr));
  return OB_OK;
}

ob_status stream_create(ob_device device, ob_stream* stream) {
  const cl_bitfield properties[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
  cl_int code = CL_SUCCESS;
  cl_command_queue queue = cl->clCreateCommandQueueWithProperties(device->context, device->id, properties, &code);
  if (queue == nullptr) return status_of(code, "clCreateCommandQueueWithProperties");
  *stream = new ob_stream_t{device, queue};
  return OB_OK;
}

ob_status stream_destroy(ob_stream stream) {
  const cl_int code = cl->clReleaseCommandQueue(stream->queue);
  delete stream;
  return status_of(code, "clReleaseCommandQueue");
}

ob_status finish(ob_stream stream) {
  if (!stream->outstanding.exchange(false)) return OB_OK;
  return status_of(cl->clFinish(stream->queue), "clFinish");
}

/// OB_OK once `event` is reached, OB_NOT_READY before; a command that failed reports its error.
ob_status poll(cl_event event) {
  cl_int status = 0;
  const cl_int code = cl->clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, nullptr);
  if (code != CL_SUCCESS) return status_of(code, "clGetEventInfo");
  if (status < 0) return status_of(status, "a queued command");
  return static_cast<cl_uint>(status) == CL_COMPLETE ? OB_OK : OB_NOT_READY;
}

ob_status stream_wait(ob_stream stream, int blocking) {
  if (blocking != 0) return finish(stream);
  if (!stream->outstanding.load()) return OB_OK;
  cl_event marker = nullptr;
  cl_int code = cl->clEnqueueMarkerWithWaitList(stream->queue, 0, nullptr, &marker);
  if (code != CL_SUCCESS) return status_of(code, "clEnqueueMarkerWithWaitList");
  cl->clFlush(stream->queue);
  const ob_status status = poll(marker);
  cl->clReleaseEvent(marker);
  return status;
}

ob_status stream_wait_event(ob_stream stream, ob_event event) {
  std::lock_guard<std::mutex> lock(event->mutex);
  if (event->marker == nullptr) return OB_OK;
  stream->outstanding.store(true);
  if (stream->device->context != event->device->context) {  // events do not cross contexts
    return status_of(cl->clWaitForEvents(1, &event->marker), "clWaitForEvents");
  }
  return status_of(cl->clEnqueueBarrierWithWaitList(stream->queue, 1, &event->marker, nullptr),
                   "clEnqueueBarrierWithWaitList");
}

ob_status event_create(ob_device device, ob_event* event) {
  *event = new ob_event_t{};
  (*event)->device = device;
  return OB_OK;
}

ob_status event_destroy(ob_event event) {
  const cl_int code = event->marker == nullptr ? CL_SUCCESS : cl->clReleaseEvent(event->marker);
  delete event;
  return status_of(code, "clReleaseEvent");
}

ob_status event_record(ob_event event, ob_stream stream) {
  cl_event marker = nullptr;
  const cl_int code = cl->clEnqueueMarkerWithWaitList(stream->queue, 0, nullptr, &marker);
  if (code != CL_SUCCESS) return status_of(code, "clEnqueueMarkerWithWaitList");
  stream->outstanding.store(true);
  cl->clFlush(stream->queue);
  std::lock_guard<std::mutex> lock(event->mutex);
  if (event->marker != nullptr) cl->clReleaseEvent(event->marker);
  event->marker = marker;
  return OB_OK;
}

ob_status event_wait(ob_event event, int blocking) {
  std::lock_guard<std::mutex> lock(event->mutex);
  if (event->marker == nullptr) return OB_OK;
  if (blocking == 0) return poll(event->marker);
  return status_of(cl->clWaitForEvents(1, &event->marker), "clWaitForEvents");
}

ob_status timestamp(ob_event event, cl_ulong* nanoseconds) {
  std::lock_guard<std::mutex> lock(event->mutex);
  if (event->marker == nullptr) return fail(OB_INVALID_ARGUMENT, "the event was not recorded");
  const ob_status ready = poll(event->marker);
  if (ready == OB_NOT_READY) return fail(OB_INVALID_ARGUMENT, "the event is not reached yet: synchronize it first");
  if (ready != OB_OK) return ready;
  return status_of(
      cl->clGetEventProfilingInfo(event->marker, CL_PROFILING_COMMAND_END, sizeof(*nanoseconds), nanoseconds, nullptr),
      "clGetEventProfilingInfo");
}

ob_status event_elapsed(ob_event start, ob_event end, int64_t* nanoseconds) {
  cl_ulong from = 0, to = 0;
  ob_status status = timestamp(start, &from);
  if (status == OB_OK) status = timestamp(end, &to);
  if (status == OB_OK) *nanoseconds = static_cast<int64_t>(to) - static_cast<int64_t>(from);
  return status;
}

ob_status copy(ob_stream stream, ob_copy_kind, uint64_t dst, uint64_t src, uint64_t bytes) {
  auto* target = reinterpret_cast<void*>(dst);
  const auto* source = reinterpret_cast<const void*>(src);
  if (stream->device->is_cpu) {  // clEnqueueSVMMemcpy costs more than most copies: drain the queue and copy
    const ob_status status = finish(stream);
    if (status == OB_OK) std::memmove(target, source, bytes);
    return status;
  }
  stream->outstanding.store(true);
  return status_of(cl->clEnqueueSVMMemcpy(stream->queue, 0, target, source, bytes, 0, nullptr, nullptr),
                   "clEnqueueSVMMemcpy");
}

void fill_on_host(char* target, const void* pattern, uint32_t size, uint64_t bytes) {
  if (size == 1) {
    std::memset(target, *static_cast<const unsigned char*>(pattern), bytes);
    return;
  }
  uint64_t done = size < bytes ? size : bytes;
  std::memcpy(target, pattern, done);
  while (done < bytes) {
    const uint64_t step = done < bytes - done ? done : bytes - done;
    std::memcpy(target + done, target, step);
    done += step;
  }
}

ob_status fill(ob_stream stream, ob_ptr dst, const void* pattern, uint32_t pattern_size, uint64_t bytes) {
  if (stream->device->is_cpu) {
    const ob_status status = finish(stream);
    if (status == OB_OK) fill_on_host(reinterpret_cast<char*>(dst), pattern, pattern_size, bytes);
    return status;
  }
  stream->outstanding.store(true);
  return status_of(cl->clEnqueueSVMMemFill(stream->queue, reinterpret_cast<void*>(dst), pattern, pattern_size, bytes, 0,
                                           nullptr, nullptr),
                   "clEnqueueSVMMemFill");
}

ob_status build(ob_device device, cl_program program, const char* options, ob_program* made) {
  const cl_int code = cl->clBuildProgram(program, 1, &device->id, options, nullptr, nullptr);
  if (code == CL_SUCCESS) {
    *made = new ob_program_t{};
    (*made)->device = device;
    (*made)->program = program;
    return OB_OK;
  }
  size_t bytes = 0;
  cl->clGetProgramBuildInfo(program, device->id, CL_PROGRAM_BUILD_LOG, 0, nullptr, &bytes);
  std::string log(bytes, '\0');
  cl->clGetProgramBuildInfo(program, device->id, CL_PROGRAM_BUILD_LOG, bytes, log.data(), nullptr);
  cl->clReleaseProgram(program);
  return fail(OB_BUILD_FAILED, "clBuildProgram returned " + std::to_string(code) + "\n" + log.c_str());
}

ob_status program_build(ob_device device, const char* source, const char* options, ob_program* program) {
  cl_int code = CL_SUCCESS;
  cl_program made = cl->clCreateProgramWithSource(device->context, 1, &source, nullptr, &code);
  if (made == nullptr) return status_of(code, "clCreateProgramWithSource");
  return build(device, made, options, program);
}

ob_status program_load(ob_device device, const void* binary, size_t bytes, ob_program* program) {
  const auto* data = static_cast<const unsigned char*>(binary);
  cl_int code = CL_SUCCESS, accepted = CL_SUCCESS;
  cl_program made = cl->clCreateProgramWithBinary(device->context, 1, &device->id, &bytes, &data, &accepted, &code);
  if (made == nullptr || code != CL_SUCCESS) return status_of(code, "clCreateProgramWithBinary");
  return build(device, made, "", program);
}

ob_status program_binary(ob_program program, void* binary, size_t* bytes) {
  size_t size = 0;
  cl_int code = cl->clGetProgramInfo(program->program, CL_PROGRAM_BINARY_SIZES, sizeof(size), &size, nullptr);
  if (code != CL_SUCCESS) return status_of(code, "clGetProgramInfo");
  if (binary == nullptr) {
    *bytes = size;
    return OB_OK;
  }
  if (*bytes < size) return fail(OB_INVALID_ARGUMENT, "the buffer is smaller than the program's binary");
  auto* target = static_cast<unsigned char*>(binary);
  code = cl->clGetProgramInfo(program->program, CL_PROGRAM_BINARIES, sizeof(target), &target, nullptr);
  *bytes = size;
  return status_of(code, "clGetProgramInfo");
}

ob_status program_release(ob_program program) {
  for (const auto& [name, kernel] : program->kernels) cl->clReleaseKernel(kernel->kernel);
  const cl_int code = cl->clReleaseProgram(program->program);
  delete program;
  return status_of(code, "clReleaseProgram");
}

ob_status kernel_get(ob_program program, const char* name, ob_kernel* kernel) {
  std::lock_guard<std::mutex> lock(program->mutex);
  std::unique_ptr<ob_kernel_t>& found = program->kernels[name];
  if (found == nullptr) {
    cl_int code = CL_SUCCESS;
    cl_kernel made = cl->clCreateKernel(program->program, name, &code);
    if (made == nullptr) {
      program->kernels.erase(name);
      return status_of(code, "clCreateKernel");
    }
    found = std::make_unique<ob_kernel_t>();
    found->kernel = made;
  }
  *kernel = found.get();
  return OB_OK;
}

ob_status set_argument(cl_kernel kernel, cl_uint index, const ob_argument& argument) {
  if (argument.is_pointer == 0) {
    return status_of(cl->clSetKernelArg(kernel, index, argument.size, argument.value), "clSetKernelArg");
  }
  ob_ptr pointer;
  std::memcpy(&pointer, argument.value, sizeof(pointer));
  return status_of(cl->clSetKernelArgSVMPointer(kernel, index, reinterpret_cast<const void*>(pointer)),
                   "clSetKernelArgSVMPointer");
}

ob_status launch(ob_stream stream, ob_kernel kernel, const uint64_t global[3], const uint32_t local[3],
                 const ob_argument* arguments, uint32_t argument_count) {
  const size_t items[3] = {global[0], global[1], global[2]};
  const size_t group[3] = {local[0], local[1], local[2]};
  const cl_uint dimensions = global[2] > 1 ? 3 : global[1] > 1 ? 2 : 1;
  std::lock_guard<std::mutex> lock(kernel->mutex);
  for (uint32_t i = 0; i < argument_count; ++i) {
    const ob_status status = set_argument(kernel->kernel, i, arguments[i]);
    if (status != OB_OK) return status;
  }
  stream->outstanding.store(true);
  return status_of(cl->clEnqueueNDRangeKernel(stream->queue, kernel->kernel, dimensions, nullptr, items,
                                              local[0] == 0 ? nullptr : group, 0, nullptr, nullptr),
                   "clEnqueueNDRangeKernel");
}

constexpr ob_driver make_driver() {
  ob_driver driver{};
  driver.struct_size = sizeof(ob_driver);
  driver.abi_major = OB_ABI_MAJOR;
  driver.abi_minor = OB_ABI_MINOR;
  driver.name = "opencl";
  driver.last_error = last_error;
  driver.device_count = device_count;
  driver.device_open = device_open;
  driver.device_properties = device_properties;
  driver.memory_alloc = memory_alloc;
  driver.memory_free = memory_free;
  driver.stream_create = stream_create;
  driver.stream_destroy = stream_destroy;
  driver.stream_wait = stream_wait;
  driver.stream_wait_event = stream_wait_event;
  driver.event_create = event_create;
  driver.event_destroy = event_destroy;
  driver.event_record = event_record;
  driver.event_wait = event_wait;
  driver.event_elapsed = event_elapsed;
  driver.copy = copy;
  driver.fill = fill;
  driver.program_build = program_build;
  driver.program_load = program_load;
  driver.program_binary = program_binary;
  driver.program_release = program_release;
  driver.kernel_get = kernel_get;
  driver.launch = launch;
  return driver;
}

constexpr ob_driver kDriver = make_driver();

}  // namespace

extern "C" __attribute__((visibility("default"))) const ob_driver* outboard_driver(void) { return &kDriver; }
