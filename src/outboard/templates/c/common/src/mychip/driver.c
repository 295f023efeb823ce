/* The driver of mychip: what Outboard calls, as outboard/driver.h says, in what C and C++ have in common.
 *
 * As it stands, the chip is the processor: memory is the host's, and a call has done its work when it returns. Replace
 * a part at a time by your hardware's, and try each with
 *
 *   outboard conform --driver mychip --level LEVEL_OF_KIND
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "chip.h"

struct ob_device_t {
  int index;
};
struct ob_event_t {
  int64_t nanoseconds;
};

static struct ob_device_t only_device;
static thread_local char error[4096];

ob_status fail(ob_status status, const char* text) {
  snprintf(error, sizeof(error), "%s", text);
  return status;
}
/* ---- devices ---- */

static const char* last_error(void) { return error; }

static ob_status device_count(uint32_t* count) {
  *count = 1; /* 0 where there is no hardware; last_error then says what is missing */
  return OB_OK;
}

static ob_status device_open(uint32_t index, ob_device* device) {
  if (index != 0) return fail(OB_INVALID_ARGUMENT, "there is one device, 0");
  *device = &only_device;
  return OB_OK;
}

static ob_status device_properties(ob_device device, ob_device_properties* properties) {
  (void)device;
  ob_device_properties all; /* a caller may know fewer of them */
  memset(&all, 0, sizeof(all));
  strcpy(all.name, "mychip");
  strcpy(all.vendor, "its maker");
  strcpy(all.driver_version, "0.1");
  strcpy(all.cache_key, "mychip-0.1-2"); /* change it when programs made before are no longer valid */
  all.type = OB_DEVICE_ACCELERATOR;
  all.compute_units = 1;
  all.vector_width = 1;
  all.total_memory = 1ull << 32;
  all.alignment = 64;
  all.host_accessible = 1; /* 0 on a device with a memory of its own */
  describe_code(&all);
  all.struct_size = properties->struct_size;
  memcpy(properties, &all, all.struct_size < sizeof(all) ? all.struct_size : sizeof(all));
  return OB_OK;
}

/* ---- memory ---- */

static ob_status memory_alloc(ob_device device, uint64_t bytes, ob_ptr* ptr) {
  (void)device;
  *ptr = bytes > (1ull << 32) ? 0 : (ob_ptr)(uintptr_t)aligned_alloc(64, (bytes + 63) / 64 * 64);
  return *ptr != 0 ? OB_OK : fail(OB_OUT_OF_MEMORY, "no memory is left");
}

static ob_status memory_free(ob_device device, ob_ptr ptr) {
  (void)device;
  free(host(ptr));
  return OB_OK;
}

/* ---- streams and events: all work is done when its call returns, so there is nothing to wait for ---- */

static ob_status stream_create(ob_device device, ob_stream* stream) {
  *stream = (ob_stream)device;
  return OB_OK;
}
static ob_status stream_destroy(ob_stream stream) { return (void)stream, OB_OK; }
static ob_status stream_wait(ob_stream stream, int blocking) { return (void)stream, (void)blocking, OB_OK; }
static ob_status stream_wait_event(ob_stream stream, ob_event event) { return (void)stream, (void)event, OB_OK; }

static ob_status event_create(ob_device device, ob_event* event) {
  (void)device;
  *event = (ob_event)calloc(1, sizeof(struct ob_event_t));
  return *event != NULL ? OB_OK : fail(OB_OUT_OF_MEMORY, "no memory is left");
}
static ob_status event_destroy(ob_event event) { return free(event), OB_OK; }
static ob_status event_record(ob_event event, ob_stream stream) {
  (void)stream;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  event->nanoseconds = now.tv_sec * 1000000000ll + now.tv_nsec;
  return OB_OK;
}
static ob_status event_wait(ob_event event, int blocking) { return (void)event, (void)blocking, OB_OK; }
static ob_status event_elapsed(ob_event start, ob_event end, int64_t* nanoseconds) {
  *nanoseconds = end->nanoseconds - start->nanoseconds;
  return OB_OK;
}

/* ---- data ---- */

static ob_status copy(ob_stream stream, ob_copy_kind kind, uint64_t dst, uint64_t src, uint64_t bytes) {
  (void)stream, (void)kind;
  memmove(host(dst), host(src), bytes);
  return OB_OK;
}

static ob_status fill(ob_stream stream, ob_ptr dst, const void* pattern, uint32_t pattern_size, uint64_t bytes) {
  (void)stream;
  for (uint64_t done = 0; done < bytes; done += pattern_size) memcpy(host(dst + done), pattern, pattern_size);
  return OB_OK;
}

/* ---- what Outboard asks for ---- */

const ob_driver* outboard_driver(void) {
  static const ob_driver table = {.struct_size = sizeof(ob_driver),
                                  .abi_major = OB_ABI_MAJOR,
                                  .abi_minor = OB_ABI_MINOR,
                                  .name = "mychip",
#define OB_REQUIRED(name) .name = name,
#define OB_OPTIONAL(name) /* NULL: Outboard does without */
#include "outboard/functions.def"
                                  /* Optional functions of this file, in driver.h's order, each followed by a comma. */
                                  MYCHIP_OPTIONAL_FUNCTIONS};
  return &table;
}
