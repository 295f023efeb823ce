// SPDX-License-Identifier: Apache-2.0
#include "outboard/driver.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/caches.h"
#include "common/device_parts.h"
#include "common/expected_memory.h"
#include "common/host_memory.h"
#include "common/table.h"
#include "common/transfers.h"
#include "opencl/cl_api.h"
#include "opencl/llvm_options.h"
#include "opencl/sub_groups.h"

/// The OpenCL driver: shared virtual memory for device memory, one context per device, in-order queues.
using namespace outboard::opencl;  // the C API's own names
using namespace outboard::common;

struct ob_device_t {
  cl_device_id id;
  cl_context context;
  bool is_cpu;
  cl_bitfield svm;
  cl_uint sub_group_size;
  std::string platform;
  bool has_graphs;
  CommandBufferApi graphs;  // if it has
  std::once_flag expects{};
  std::atomic<ExpectedMemory*> expected{nullptr};  // never deleted
  std::mutex mutex{};
  std::unordered_set<void*> from_host{};  // memory that OpenCL did not give, guarded by `mutex`
};

/// Launches recorded in a command buffer. Each has a kernel object of its own: PoCL 3.1 does not copy the arguments
/// when it records, as it should, so a kernel that is launched twice would have those of the second launch twice.
class Graph {
 public:
  Graph(ob_device device_, cl_command_buffer_khr commands) : device_(device_), commands_(commands) {}
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  ob_status record(const ob_kernel_t& kernel, const uint64_t global[3], const uint32_t local[3],
                   const ob_argument* arguments, uint32_t count);
  ob_status end();
  ob_status launch(ob_stream stream) const;

 private:
  const CommandBufferApi& api() const { return device_->graphs; }

  ob_device device_;
  cl_command_buffer_khr commands_;
  std::vector<cl_kernel> kernels_;
  cl_uint last_ = 0;  // synchronization point of the last launch, for the next
};

struct ob_stream_t {
  ob_device device;
  cl_command_queue queue;
  // Commands in the queue so far, and how many of them are known to be finished. A command is counted once it is in
  // the queue: a wait that begins at count n covers at least the first n.
  std::atomic<uint64_t> submitted{0};
  std::atomic<uint64_t> finished{0};
  std::mutex mutex;
  cl_event probe = nullptr;  // a marker behind the first `probe_count` commands, for asking without waiting
  uint64_t probe_count = 0;
  cl_command_queue timer = nullptr;  // a queue with profiling that runs nothing but time stamps
  std::unique_ptr<Graph> recording;
};

struct ob_event_t {
  ob_device device;
  std::mutex mutex;
  cl_event marker = nullptr;  // in the stream's queue
  cl_event stamp = nullptr;   // behind `marker`, in the timer queue
};

struct ob_kernel_t {
  cl_device_id device;
  cl_program program;
  std::string name;
  cl_kernel kernel;
  std::mutex mutex;  // OpenCL keeps arguments in the kernel object
  // Of each argument: 1 if it is a pointer, 0 if it is a value. Empty if OpenCL does not know.
  std::vector<uint8_t> pointers;
};

struct ob_program_t {
  ob_device device;
  cl_program program;
  std::mutex mutex;
  std::unordered_map<std::string, std::unique_ptr<ob_kernel_t>> kernels;
};

namespace {

const Api* cl = nullptr;

const char* meaning(cl_int code) {
  switch (code) {
    case CL_DEVICE_NOT_AVAILABLE:
      return "device not available";
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
      return "memory object allocation failure";
    case CL_OUT_OF_RESOURCES:
      return "out of resources";
    case CL_OUT_OF_HOST_MEMORY:
      return "out of host memory";
    case CL_INVALID_KERNEL_NAME:
      return "the program has no kernel of this name";
    default:
      return "see the OpenCL specification for this code";
  }
}

ob_status kind_of(cl_int code) {
  if (code == CL_DEVICE_NOT_AVAILABLE) return OB_DEVICE_LOST;
  if (code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_HOST_MEMORY) return OB_OUT_OF_MEMORY;
  return code <= CL_INVALID_VALUE ? OB_INVALID_ARGUMENT : OB_INTERNAL;
}

ob_status status_of(cl_int code, const char* function) {
  if (code == CL_SUCCESS) return OB_OK;
  return fail(kind_of(code), std::string(function) + " returned " + std::to_string(code) + " (" + meaning(code) + ")");
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

bool has_extension(cl_device_id id, const char* name) {
  const std::string all = " " + device_text(id, CL_DEVICE_EXTENSIONS) + " ";
  return all.find(" " + std::string(name) + " ") != std::string::npos;
}

/// Whether command buffers may be submitted again before they are finished, to queues without properties.
bool can_record(cl_device_id id) {
  if (!has_extension(id, "cl_khr_command_buffer")) return false;
  const auto can = device_value<cl_bitfield>(id, CL_DEVICE_COMMAND_BUFFER_CAPABILITIES_KHR, 0);
  const auto needs = device_value<cl_bitfield>(id, CL_DEVICE_COMMAND_BUFFER_REQUIRED_QUEUE_PROPERTIES_KHR, 0);
  return (can & CL_COMMAND_BUFFER_CAPABILITY_SIMULTANEOUS_USE_KHR) != 0 && needs == 0;
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
    if (wanted_parts() == 0) {
      problem = kBadNumberOfParts;
      return;
    }
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
      for (cl_device_id part : split(id, is_cpu ? wanted_parts() : 1)) add_device(part, is_cpu, platform, name);
    }
  }

  void add_device(cl_device_id id, bool is_cpu, cl_platform_id platform_id, const std::string& platform) {
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
    CommandBufferApi graphs{};
    const bool has_graphs = can_record(id) && graphs.load(*cl, platform_id);
    const cl_uint sub_group = sub_group_size(*cl, context, id, device_text(id, CL_DEVICE_EXTENSIONS));
    list.emplace_back(new ob_device_t{id, context, is_cpu, svm, sub_group, platform, has_graphs, graphs});
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

/// PoCL says 1024, the least that is allowed, and takes any number.
constexpr uint32_t kPoclArgumentBytes = 16384;

/// PoCL holds one lock of the process while it compiles.
bool is_pocl(const ob_device_t& device) { return device.platform.rfind("Portable Computing Language", 0) == 0; }

/// Options that name instructions of the processor which the device's compiler can assemble, but does not know of
/// (Debian's PoCL compiles for the first processors with AVX-512), and by which PoCL's own cache, too, tells programs
/// from those that its LLVM has compiled in another way.
std::string own_options(const ob_device_t& device) {
  if (!is_pocl(device) || !device.is_cpu) return "";
  std::string options = keeps_straight_line_code() ? " -DOB_STRAIGHT_LINES" : "";
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16") != 0) options += " -DOB_AVX512_BF16";
#endif
  return options;
}

/// For which processor PoCL was told to compile, if it was (its variables for that). Binaries for others may not run,
/// or hide what was to be tried.
std::string chosen_processor(const ob_device_t& device) {
  std::string chosen;
  for (const char* variable : {"POCL_LLVM_CPU_NAME", "POCL_KERNELLIB_NAME"}) {
    const char* value = is_pocl(device) ? std::getenv(variable) : nullptr;
    if (value != nullptr) chosen += std::string("|") + value;
  }
  return chosen;
}

/// What a CPU device may use is the host's to say: runtimes count one NUMA node, or know nothing of containers.
uint64_t total_memory(const ob_device_t& device) {
  if (!device.is_cpu) return device_value<cl_ulong>(device.id, CL_DEVICE_GLOBAL_MEM_SIZE, 0);
  return HostMemory::now().for_devices();
}

/// Bytes that clSVMAlloc gives at most.
uint64_t largest_shared(const ob_device_t& device) {
  return device_value<cl_ulong>(device.id, CL_DEVICE_MAX_MEM_ALLOC_SIZE, 0);
}

/// Whether kernels may be given any memory of the process. PoCL's CPU devices take it, though they do not say so.
bool takes_host_memory(const ob_device_t& device) {
  return device.is_cpu && ((device.svm & CL_DEVICE_SVM_FINE_GRAIN_SYSTEM) != 0 || is_pocl(device));
}

ob_status memory_info(ob_device device, uint64_t* free_bytes, uint64_t* total_bytes) {
  if (!device->is_cpu) return fail(OB_UNSUPPORTED, "OpenCL does not tell how much memory is free");
  *total_bytes = total_memory(*device);
  *free_bytes = std::min(*total_bytes, HostMemory::now().available);
  return OB_OK;
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
                            std::to_string(device_value<cl_uint>(id, CL_DEVICE_MAX_COMPUTE_UNITS, 1)) +
                            (device->sub_group_size > 1 ? "|" + std::to_string(device->sub_group_size) : "") +
                            own_options(*device) + chosen_processor(*device));
  const auto type = device_value<cl_bitfield>(id, CL_DEVICE_TYPE, 0);
  p.type = device->is_cpu ? OB_DEVICE_CPU : (type & CL_DEVICE_TYPE_GPU) != 0 ? OB_DEVICE_GPU : OB_DEVICE_ACCELERATOR;
  p.compute_units = device_value<cl_uint>(id, CL_DEVICE_MAX_COMPUTE_UNITS, 1);
  p.max_work_group_size = static_cast<uint32_t>(device_value<size_t>(id, CL_DEVICE_MAX_WORK_GROUP_SIZE, 1));
  p.sub_group_size = device->sub_group_size;
  p.vector_width = device->is_cpu ? device_value<cl_uint>(id, CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT, 1) : 1;
  p.total_memory = total_memory(*device);
  p.max_allocation = takes_host_memory(*device) ? p.total_memory : largest_shared(*device);
  p.local_memory = device_value<cl_ulong>(id, CL_DEVICE_LOCAL_MEM_SIZE, 0);
  p.alignment = device_value<cl_uint>(id, CL_DEVICE_MEM_BASE_ADDR_ALIGN, 1024) / 8;
  p.host_accessible = device->is_cpu ? 1 : 0;
  p.takes_host_memory = takes_host_memory(*device) ? 1 : 0;
  p.has_fp16 = has_extension(id, "cl_khr_fp16") ? 1 : 0;
  p.has_fp64 = has_extension(id, "cl_khr_fp64") ? 1 : 0;
  p.has_int64_atomics = has_extension(id, "cl_khr_int64_base_atomics") ? 1 : 0;
  p.serial_builds = is_pocl(*device) ? 1 : 0;
  p.max_argument_bytes = static_cast<uint32_t>(device_value<size_t>(id, CL_DEVICE_MAX_PARAMETER_SIZE, 0));
  if (is_pocl(*device)) p.max_argument_bytes = kPoclArgumentBytes;
  p.execution = device->is_cpu ? OB_EXECUTION_VECTOR : OB_EXECUTION_SIMT;
  const Caches caches = device->is_cpu ? Caches::now() : Caches{0, 0};
  p.near_cache = caches.near;
  p.last_cache = device->is_cpu ? caches.last : device_value<cl_ulong>(id, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE, 0);
  const size_t size = properties->struct_size;
  std::memcpy(properties, &p, size < sizeof(p) ? size : sizeof(p));
  properties->struct_size = size;
  return OB_OK;
}

void* allocate_shared(const ob_device_t& device, uint64_t bytes) {
  const bool fine = (device.svm & CL_DEVICE_SVM_FINE_GRAIN_BUFFER) != 0;
  const cl_bitfield flags = CL_MEM_READ_WRITE | (fine ? CL_MEM_SVM_FINE_GRAIN_BUFFER : 0);
  return cl->clSVMAlloc(device.context, flags, bytes, 0);
}

/// Memory for what is larger than OpenCL allows.
void* allocate_on_host(ob_device_t& device, uint64_t bytes) {
  constexpr uint64_t kPage = 4096;
  void* memory = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  if (memory == nullptr) return nullptr;
  const std::lock_guard lock(device.mutex);
  device.from_host.insert(memory);
  return memory;
}

void* allocate(ob_device_t& device, uint64_t bytes) {
  const bool too_large = bytes > largest_shared(device) && takes_host_memory(device);
  return too_large ? allocate_on_host(device, bytes) : allocate_shared(device, bytes);
}

void give_back(ob_device_t& device, void* memory) {
  {
    const std::lock_guard lock(device.mutex);
    if (device.from_host.erase(memory) == 0) return cl->clSVMFree(device.context, memory);
  }
  std::free(memory);
}

ob_status memory_alloc(ob_device device, uint64_t bytes, ob_ptr* ptr) {
  ExpectedMemory* const expected = device->expected.load(std::memory_order_acquire);
  void* memory = expected != nullptr ? expected->take(bytes) : nullptr;
  if (memory == nullptr) memory = allocate(*device, bytes);
  if (memory == nullptr) return fail(OB_OUT_OF_MEMORY, "clSVMAlloc of " + std::to_string(bytes) + " bytes failed");
  if (device->is_cpu) prefer_huge_pages(memory, bytes);
  *ptr = reinterpret_cast<ob_ptr>(memory);
  return OB_OK;
}

ob_status memory_free(ob_device device, ob_ptr ptr) {
  auto* memory = reinterpret_cast<void*>(ptr);
  ExpectedMemory* const expected = device->expected.load(std::memory_order_acquire);
  if (expected == nullptr || !expected->give_back(memory)) give_back(*device, memory);
  return OB_OK;
}

void prepare_memory(ob_device_t& device, uint64_t bytes) {
  void* memory = allocate_shared(device, bytes);
  if (memory != nullptr) device.expected.store(new ExpectedMemory(memory, bytes), std::memory_order_release);
}

/// The first expectation counts: programs have one when they start.
ob_status memory_expect(ob_device device, uint64_t bytes) {
  if (!device->is_cpu || !ExpectedMemory::helps()) return OB_OK;
  std::call_once(device->expects, prepare_memory, std::ref(*device), ExpectedMemory::with_edges(bytes));
  return OB_OK;
}

ob_status create_queue(ob_device device, cl_bitfield options, cl_command_queue* queue) {
  const cl_bitfield properties[] = {CL_QUEUE_PROPERTIES, options, 0};
  cl_int code = CL_SUCCESS;
  *queue = cl->clCreateCommandQueueWithProperties(device->context, device->id, properties, &code);
  return *queue != nullptr ? OB_OK : status_of(code, "clCreateCommandQueueWithProperties");
}

ob_status stream_create(ob_device device, ob_stream* stream) {
  auto made = std::make_unique<ob_stream_t>();
  made->device = device;
  const ob_status status = create_queue(device, 0, &made->queue);
  if (status == OB_OK) *stream = made.release();
  return status;
}

void release(cl_event event) {
  if (event != nullptr) cl->clReleaseEvent(event);
}

ob_status stream_destroy(ob_stream stream) {
  release(stream->probe);
  if (stream->timer != nullptr) cl->clReleaseCommandQueue(stream->timer);
  const cl_int code = cl->clReleaseCommandQueue(stream->queue);
  delete stream;
  return status_of(code, "clReleaseCommandQueue");
}

/// What became of a command; it counts as outstanding work even if it failed half-way.
ob_status submitted(ob_stream stream, cl_int code, const char* function) {
  stream->submitted.fetch_add(1, std::memory_order_release);
  return status_of(code, function);
}

bool is_idle(ob_stream stream) {
  return stream->finished.load(std::memory_order_acquire) >= stream->submitted.load(std::memory_order_acquire);
}

void note_finished(ob_stream stream, uint64_t count) {
  uint64_t known = stream->finished.load(std::memory_order_relaxed);
  while (known < count && !stream->finished.compare_exchange_weak(known, count, std::memory_order_acq_rel)) {
  }
}

ob_status finish(ob_stream stream) {
  const uint64_t count = stream->submitted.load(std::memory_order_acquire);
  if (stream->finished.load(std::memory_order_acquire) >= count) return OB_OK;
  const cl_int code = cl->clFinish(stream->queue);
  if (code == CL_SUCCESS) note_finished(stream, count);  // else nobody knows, and the next wait asks again
  return status_of(code, "clFinish");
}

/// OB_OK once `event` is reached, OB_NOT_READY before; a command that failed reports its error.
ob_status poll(cl_event event) {
  cl_int status = 0;
  const cl_int code = cl->clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, nullptr);
  if (code != CL_SUCCESS) return status_of(code, "clGetEventInfo");
  if (status < 0) return status_of(status, "a queued command");
  return static_cast<cl_uint>(status) == CL_COMPLETE ? OB_OK : OB_NOT_READY;
}

/// Asks a marker that stays in the queue between calls: a fresh one is never reached at once, and asking again and
/// again would never end.
ob_status is_finished(ob_stream stream) {
  if (is_idle(stream)) return OB_OK;
  std::lock_guard<std::mutex> lock(stream->mutex);
  if (stream->probe == nullptr) {
    const uint64_t count = stream->submitted.load(std::memory_order_acquire);
    const cl_int code = cl->clEnqueueMarkerWithWaitList(stream->queue, 0, nullptr, &stream->probe);
    if (code != CL_SUCCESS) return status_of(code, "clEnqueueMarkerWithWaitList");
    cl->clFlush(stream->queue);
    stream->probe_count = count;
  }
  const ob_status status = poll(stream->probe);
  if (status == OB_NOT_READY) return status;
  if (status == OB_OK) note_finished(stream, stream->probe_count);
  release(stream->probe);
  stream->probe = nullptr;
  return status != OB_OK || is_idle(stream) ? status : OB_NOT_READY;
}

ob_status stream_wait(ob_stream stream, int blocking) { return blocking != 0 ? finish(stream) : is_finished(stream); }

/// The caller's own reference to an event's marker, or nullptr if it was never recorded.
cl_event marker_of(ob_event event) {
  std::lock_guard<std::mutex> lock(event->mutex);
  if (event->marker != nullptr) cl->clRetainEvent(event->marker);
  return event->marker;
}

ob_status stream_wait_event(ob_stream stream, ob_event event) {
  cl_event marker = marker_of(event);
  if (marker == nullptr) return OB_OK;
  const bool shared = stream->device->context == event->device->context;  // events do not cross contexts
  const ob_status status = shared
                               ? submitted(stream, cl->clEnqueueBarrierWithWaitList(stream->queue, 1, &marker, nullptr),
                                           "clEnqueueBarrierWithWaitList")
                               : status_of(cl->clWaitForEvents(1, &marker), "clWaitForEvents");
  release(marker);
  return status;
}

ob_status event_create(ob_device device, ob_event* event) {
  *event = new ob_event_t{};
  (*event)->device = device;
  return OB_OK;
}

ob_status event_destroy(ob_event event) {
  release(event->marker);
  release(event->stamp);
  delete event;
  return OB_OK;
}

ob_status timer_of(ob_stream stream, cl_command_queue* timer) {
  std::lock_guard<std::mutex> lock(stream->mutex);
  const ob_status status =
      stream->timer != nullptr ? OB_OK : create_queue(stream->device, CL_QUEUE_PROFILING_ENABLE, &stream->timer);
  *timer = stream->timer;
  return status;
}

/// Profiling makes every command of a queue dearer (on Intel's runtime a launch costs half as much again), so time is
/// taken by a second marker, in a queue of its own that waits for the first.
ob_status event_record(ob_event event, ob_stream stream) {
  cl_command_queue timer = nullptr;
  const ob_status ready = timer_of(stream, &timer);
  if (ready != OB_OK) return ready;
  cl_event marker = nullptr, stamp = nullptr;
  cl_int code = cl->clEnqueueMarkerWithWaitList(stream->queue, 0, nullptr, &marker);
  if (code != CL_SUCCESS) return submitted(stream, code, "clEnqueueMarkerWithWaitList");
  stream->submitted.fetch_add(1, std::memory_order_release);
  cl->clFlush(stream->queue);
  code = cl->clEnqueueMarkerWithWaitList(timer, 1, &marker, &stamp);
  if (code != CL_SUCCESS) {
    release(marker);
    return status_of(code, "clEnqueueMarkerWithWaitList");
  }
  cl->clFlush(timer);
  std::lock_guard<std::mutex> lock(event->mutex);
  release(event->marker);
  release(event->stamp);
  event->marker = marker;
  event->stamp = stamp;
  return OB_OK;
}

ob_status event_wait(ob_event event, int blocking) {
  cl_event marker = marker_of(event);
  if (marker == nullptr) return OB_OK;
  const ob_status status = blocking == 0 ? poll(marker) : status_of(cl->clWaitForEvents(1, &marker), "clWaitForEvents");
  release(marker);
  return status;
}

ob_status timestamp(ob_event event, cl_ulong* nanoseconds) {
  std::lock_guard<std::mutex> lock(event->mutex);
  if (event->marker == nullptr) return fail(OB_INVALID_ARGUMENT, "the event was not recorded");
  const ob_status ready = poll(event->marker);
  if (ready == OB_NOT_READY) return fail(OB_INVALID_ARGUMENT, "the event is not reached yet: synchronize it first");
  if (ready != OB_OK) return ready;
  const cl_int code = cl->clWaitForEvents(1, &event->stamp);  // it follows the marker at once
  if (code != CL_SUCCESS) return status_of(code, "clWaitForEvents");
  return status_of(
      cl->clGetEventProfilingInfo(event->stamp, CL_PROFILING_COMMAND_END, sizeof(*nanoseconds), nanoseconds, nullptr),
      "clGetEventProfilingInfo");
}

ob_status event_elapsed(ob_event start, ob_event end, int64_t* nanoseconds) {
  cl_ulong from = 0, to = 0;
  ob_status status = timestamp(start, &from);
  if (status == OB_OK) status = timestamp(end, &to);
  if (status == OB_OK) *nanoseconds = static_cast<int64_t>(to) - static_cast<int64_t>(from);
  return status;
}

/// Whether to move memory by the host, once the queue is drained. On a CPU device that is cheaper than a command if
/// nothing is queued, and the only way to be done with host memory when the call returns.
bool by_host(ob_stream stream, bool touches_host_memory) {
  return stream->device->is_cpu && (touches_host_memory || is_idle(stream));
}

ob_status enqueue_copy(ob_stream stream, void* target, const void* source, uint64_t bytes) {
  return submitted(stream, cl->clEnqueueSVMMemcpy(stream->queue, 0, target, source, bytes, 0, nullptr, nullptr),
                   "clEnqueueSVMMemcpy");
}

/// clEnqueueSVMMemcpy refuses ranges that overlap: this goes through memory of its own.
ob_status copy_overlapping(ob_stream stream, void* target, const void* source, uint64_t bytes) {
  void* between = allocate(*stream->device, bytes);
  if (between == nullptr) return fail(OB_OUT_OF_MEMORY, "clSVMAlloc of " + std::to_string(bytes) + " bytes failed");
  ob_status status = enqueue_copy(stream, between, source, bytes);
  if (status == OB_OK) status = enqueue_copy(stream, target, between, bytes);
  const ob_status finished = finish(stream);
  give_back(*stream->device, between);
  return status == OB_OK ? finished : status;
}

ob_status copy(ob_stream stream, ob_copy_kind kind, uint64_t dst, uint64_t src, uint64_t bytes) {
  auto* target = reinterpret_cast<void*>(dst);
  const auto* source = reinterpret_cast<const void*>(src);
  const bool overlaps = kind == OB_DEVICE_TO_DEVICE && dst < src + bytes && src < dst + bytes;
  if (by_host(stream, kind != OB_DEVICE_TO_DEVICE || overlaps)) {
    const ob_status status = finish(stream);
    if (status == OB_OK) copy_on_host(nullptr, target, source, bytes, overlaps);
    return status;
  }
  return overlaps ? copy_overlapping(stream, target, source, bytes) : enqueue_copy(stream, target, source, bytes);
}

ob_status fill(ob_stream stream, ob_ptr dst, const void* pattern, uint32_t pattern_size, uint64_t bytes) {
  if (by_host(stream, false)) {
    const ob_status status = finish(stream);
    if (status == OB_OK) fill_on_host(reinterpret_cast<char*>(dst), pattern, pattern_size, bytes);
    return status;
  }
  return submitted(stream,
                   cl->clEnqueueSVMMemFill(stream->queue, reinterpret_cast<void*>(dst), pattern, pattern_size, bytes, 0,
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

/// PoCL prints the number of a program's warnings, but not the warnings. Errors are in the log of a build that fails.
constexpr const char* kQuiet = " -w";

/// Has kernels know which of their arguments are pointers; binaries keep it.
constexpr char kKernelsTell[] = " -cl-kernel-arg-info";

ob_status program_build(ob_device device, const char* source, const char* options, ob_program* program) {
  const std::string all_options = std::string(options) + kQuiet + kKernelsTell + own_options(*device);
  cl_int code = CL_SUCCESS;
  cl_program made = cl->clCreateProgramWithSource(device->context, 1, &source, nullptr, &code);
  if (made == nullptr) return status_of(code, "clCreateProgramWithSource");
  return build(device, made, all_options.c_str(), program);
}

ob_status program_load(ob_device device, const void* binary, size_t bytes, ob_program* program) {
  const auto* data = static_cast<const unsigned char*>(binary);
  cl_int code = CL_SUCCESS, accepted = CL_SUCCESS;
  cl_program made = cl->clCreateProgramWithBinary(device->context, 1, &device->id, &bytes, &data, &accepted, &code);
  if (made == nullptr) return status_of(code, "clCreateProgramWithBinary");
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

/// Which of a kernel's arguments are pointers to the device's memory.
std::vector<uint8_t> pointers_of(cl_kernel kernel) {
  cl_uint count = 0;
  if (cl->clGetKernelInfo(kernel, CL_KERNEL_NUM_ARGS, sizeof(count), &count, nullptr) != CL_SUCCESS) return {};
  std::vector<uint8_t> pointers;
  for (cl_uint i = 0; i < count; ++i) {
    cl_uint space = 0;
    const cl_int code =
        cl->clGetKernelArgInfo(kernel, i, CL_KERNEL_ARG_ADDRESS_QUALIFIER, sizeof(space), &space, nullptr);
    if (code != CL_SUCCESS) return {};
    pointers.push_back(space == CL_KERNEL_ARG_ADDRESS_PRIVATE ? 0 : 1);
  }
  return pointers;
}

/// Fails unless the kernel takes these arguments: a number that is taken for a pointer would lead anywhere.
ob_status check_arguments(const ob_kernel_t& kernel, const ob_argument* arguments, uint32_t count) {
  if (kernel.pointers.empty()) return OB_OK;
  bool right = kernel.pointers.size() == count;
  for (uint32_t i = 0; right && i < count; ++i) right = (arguments[i].is_pointer != 0) == (kernel.pointers[i] != 0);
  return right ? OB_OK : fail(OB_INVALID_ARGUMENT, "kernel " + kernel.name + " takes other arguments");
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
    found->device = program->device->id;
    found->program = program->program;
    found->name = name;
    found->kernel = made;
    found->pointers = pointers_of(made);
  }
  *kernel = found.get();
  return OB_OK;
}

ob_status kernel_properties(ob_kernel kernel, ob_kernel_properties* properties) {
  size_t group = 0;
  cl_ulong local = 0;
  cl_int code = cl->clGetKernelWorkGroupInfo(kernel->kernel, kernel->device, CL_KERNEL_WORK_GROUP_SIZE, sizeof(group),
                                             &group, nullptr);
  if (code == CL_SUCCESS) {
    code = cl->clGetKernelWorkGroupInfo(kernel->kernel, kernel->device, CL_KERNEL_LOCAL_MEM_SIZE, sizeof(local), &local,
                                        nullptr);
  }
  if (code != CL_SUCCESS) return status_of(code, "clGetKernelWorkGroupInfo");
  const ob_kernel_properties needs{properties->struct_size, static_cast<uint32_t>(group), local};
  std::memcpy(properties, &needs, std::min(properties->struct_size, sizeof(needs)));
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

ob_status set_arguments(cl_kernel kernel, const ob_argument* arguments, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    const ob_status status = set_argument(kernel, i, arguments[i]);
    if (status != OB_OK) return status;
  }
  return OB_OK;
}

/// Work-items as OpenCL wants them.
struct Range {
  Range(const uint64_t global[3], const uint32_t local[3])
      : items{global[0], global[1], global[2]},
        sizes{local[0], local[1], local[2]},
        dimensions(global[2] > 1   ? 3
                   : global[1] > 1 ? 2
                                   : 1) {}
  /// nullptr lets OpenCL choose.
  const size_t* group() const { return sizes[0] == 0 ? nullptr : sizes; }

  size_t items[3], sizes[3];
  cl_uint dimensions;
};

ob_status launch(ob_stream stream, ob_kernel kernel, const uint64_t global[3], const uint32_t local[3],
                 const ob_argument* arguments, uint32_t argument_count) {
  const ob_status checked = check_arguments(*kernel, arguments, argument_count);
  if (checked != OB_OK) return checked;
  if (stream->recording != nullptr) {
    return stream->recording->record(*kernel, global, local, arguments, argument_count);
  }
  const Range range(global, local);
  std::lock_guard<std::mutex> lock(kernel->mutex);
  const ob_status status = set_arguments(kernel->kernel, arguments, argument_count);
  if (status != OB_OK) return status;
  return submitted(stream,
                   cl->clEnqueueNDRangeKernel(stream->queue, kernel->kernel, range.dimensions, nullptr, range.items,
                                              range.group(), 0, nullptr, nullptr),
                   "clEnqueueNDRangeKernel");
}

ob_status capture_begin(ob_stream stream) {
  if (!stream->device->has_graphs) return fail(OB_UNSUPPORTED, "the device has no command buffers");
  const cl_bitfield properties[] = {CL_COMMAND_BUFFER_FLAGS_KHR, CL_COMMAND_BUFFER_SIMULTANEOUS_USE_KHR, 0};
  cl_int code = CL_SUCCESS;
  cl_command_buffer_khr commands =
      stream->device->graphs.clCreateCommandBufferKHR(1, &stream->queue, properties, &code);
  if (commands == nullptr) return status_of(code, "clCreateCommandBufferKHR");
  stream->recording = std::make_unique<Graph>(stream->device, commands);
  return OB_OK;
}

ob_status capture_end(ob_stream stream, void** graph) {
  if (stream->recording == nullptr) return fail(OB_INVALID_ARGUMENT, "the stream records no graph");
  std::unique_ptr<Graph> recorded = std::move(stream->recording);
  const ob_status status = recorded->end();
  if (status == OB_OK) *graph = recorded.release();
  return status;
}

ob_status graph_launch(ob_stream stream, void* graph) { return static_cast<const Graph*>(graph)->launch(stream); }

ob_status graph_destroy(void* graph) {
  delete static_cast<Graph*>(graph);
  return OB_OK;
}

constexpr ob_driver make_driver() {
  using namespace outboard::common::absent;
  ob_driver driver = outboard::common::new_table("opencl");
#define OB_FUNCTION(name) outboard::common::offer<name>(driver.name);
#include "outboard/functions.def"
  return driver;
}

constexpr ob_driver kDriver = make_driver();

}  // namespace

Graph::~Graph() {
  api().clReleaseCommandBufferKHR(commands_);
  for (cl_kernel kernel : kernels_) cl->clReleaseKernel(kernel);
}

ob_status Graph::record(const ob_kernel_t& kernel, const uint64_t global[3], const uint32_t local[3],
                        const ob_argument* arguments, uint32_t count) {
  cl_int code = CL_SUCCESS;
  cl_kernel own = cl->clCreateKernel(kernel.program, kernel.name.c_str(), &code);
  if (own == nullptr) return status_of(code, "clCreateKernel");
  kernels_.push_back(own);
  const ob_status status = set_arguments(own, arguments, count);
  if (status != OB_OK) return status;
  const Range range(global, local);
  const cl_uint before = last_;
  const bool first = kernels_.size() == 1;
  code = api().clCommandNDRangeKernelKHR(commands_, nullptr, nullptr, own, range.dimensions, nullptr, range.items,
                                         range.group(), first ? 0 : 1, first ? nullptr : &before, &last_, nullptr);
  return status_of(code, "clCommandNDRangeKernelKHR");
}

ob_status Graph::end() { return status_of(api().clFinalizeCommandBufferKHR(commands_), "clFinalizeCommandBufferKHR"); }

ob_status Graph::launch(ob_stream stream) const {
  return submitted(stream, api().clEnqueueCommandBufferKHR(1, &stream->queue, commands_, 0, nullptr, nullptr),
                   "clEnqueueCommandBufferKHR");
}

extern "C" __attribute__((visibility("default"))) const ob_driver* outboard_driver(void) { return &kDriver; }
