/* SPDX-License-Identifier: Apache-2.0
 *
 * The shortest driver: a device that is host memory and computes nothing, so operators run on the CPU, counted.
 * Copy it, and replace a function at a time by your hardware's:
 *
 *   cc -std=c11 -shared -fPIC -I include csrc/drivers/null/driver.c -o libnull.so
 *   OUTBOARD_DRIVER=$PWD/libnull.so python -c "import torch; print(torch.arange(3, device='ocl') + 1)"
 */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "outboard/driver.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct ob_device_t {
  int index;
};
struct ob_event_t {
  int64_t nanoseconds;
};

static struct ob_device_t only_device;
static _Thread_local const char* error = "";

static ob_status fail(ob_status status, const char* text) {
  error = text;
  return status;
}
static void* host(ob_ptr ptr) { return (void*)(uintptr_t)ptr; }

/* Devices. */
static const char* last_error(void) { return error; }
static ob_status device_count(uint32_t* count) { return *count = 1, OB_OK; }
static ob_status device_open(uint32_t index, ob_device* device) {
  if (index != 0) return fail(OB_INVALID_ARGUMENT, "there is one device, 0");
  return *device = &only_device, OB_OK;
}
static ob_status device_properties(ob_device device, ob_device_properties* properties) {
  strcpy(properties->name, "null");
  strcpy(properties->vendor, "nobody");
  strcpy(properties->driver_version, "1");
  strcpy(properties->cache_key, "null-1");
  properties->type = OB_DEVICE_ACCELERATOR;
  properties->compute_units = properties->max_work_group_size = properties->sub_group_size = 1;
  properties->vector_width = 1;
  properties->total_memory = 1ull << 32;
  properties->alignment = 64;
  properties->host_accessible = 1; /* 0 on a device with a memory of its own */
  return OB_OK;
}

/* Memory. */
static ob_status memory_alloc(ob_device device, uint64_t bytes, ob_ptr* ptr) {
  *ptr = (ob_ptr)(uintptr_t)aligned_alloc(64, (bytes + 63) / 64 * 64);
  return *ptr ? OB_OK : fail(OB_OUT_OF_MEMORY, "no memory is left");
}
static ob_status memory_free(ob_device device, ob_ptr ptr) { return free(host(ptr)), OB_OK; }

/* Streams: everything is done when its call returns, so there is nothing to wait for. */
static ob_status stream_create(ob_device device, ob_stream* stream) { return *stream = (ob_stream)device, OB_OK; }
static ob_status stream_destroy(ob_stream stream) { return OB_OK; }
static ob_status stream_wait(ob_stream stream, int blocking) { return OB_OK; }
static ob_status stream_wait_event(ob_stream stream, ob_event event) { return OB_OK; }

/* Events. */
static ob_status event_create(ob_device device, ob_event* event) {
  *event = calloc(1, sizeof(struct ob_event_t));
  return *event ? OB_OK : fail(OB_OUT_OF_MEMORY, "no memory is left");
}
static ob_status event_destroy(ob_event event) { return free(event), OB_OK; }
static ob_status event_record(ob_event event, ob_stream stream) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  event->nanoseconds = now.tv_sec * 1000000000ll + now.tv_nsec;
  return OB_OK;
}
static ob_status event_wait(ob_event event, int blocking) { return OB_OK; }
static ob_status event_elapsed(ob_event start, ob_event end, int64_t* nanoseconds) {
  return *nanoseconds = end->nanoseconds - start->nanoseconds, OB_OK;
}

/* Data. */
static ob_status copy(ob_stream stream, ob_copy_kind kind, uint64_t dst, uint64_t src, uint64_t bytes) {
  return memmove(host(dst), host(src), bytes), OB_OK;
}
static ob_status fill(ob_stream stream, ob_ptr dst, const void* pattern, uint32_t pattern_size, uint64_t bytes) {
  for (uint64_t done = 0; done < bytes; done += pattern_size) memcpy(host(dst + done), pattern, pattern_size);
  return OB_OK;
}

/* Programs: none, as `dialect` is empty. */
static ob_status no_programs(void) { return fail(OB_UNSUPPORTED, "this device has no compiler"); }
static ob_status program_build(ob_device d, const char* s, const char* o, ob_program* p) { return no_programs(); }
static ob_status program_load(ob_device d, const void* b, size_t n, ob_program* p) { return no_programs(); }
static ob_status program_binary(ob_program p, void* b, size_t* n) { return no_programs(); }
static ob_status program_release(ob_program p) { return no_programs(); }
static ob_status kernel_get(ob_program p, const char* n, ob_kernel* k) { return no_programs(); }
static ob_status launch(ob_stream s, ob_kernel k, const uint64_t g[3], const uint32_t l[3], const ob_argument* a,
                        uint32_t n) {
  return no_programs();
}

const ob_driver* outboard_driver(void) {
  static const ob_driver table = {
      .struct_size = sizeof(ob_driver),
      .abi_major = OB_ABI_MAJOR,
      .abi_minor = OB_ABI_MINOR,
      .name = "null",
#define OB_REQUIRED(name) .name = name,
#define OB_OPTIONAL(name) /* NULL: Outboard does without */
#include "outboard/functions.def"
  };
  return &table;
}
