/* SPDX-License-Identifier: Apache-2.0
 *
 * A driver with a fault: the table of the driver at OUTBOARD_WRONG_DRIVER, in which the functions that OUTBOARD_WRONG
 * names (a fault of FAULTS below) break a clause of driver.h. Without OUTBOARD_WRONG it is that driver.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "outboard/driver.h"

static const ob_driver* right;
static ob_driver wrong;
static ob_device device;

static char shared_text[512]; /* of all threads, and gone after the next call that succeeds */
static const char* shared_error(void) { return shared_text; }
static ob_status open_with_shared_text(uint32_t index, ob_device* out) {
  ob_status status = right->device_open(index, out);
  snprintf(shared_text, sizeof shared_text, "%s", status == OB_OK ? "" : right->last_error());
  return status;
}
static ob_status create_with_shared_text(ob_device d, ob_stream* s) {
  shared_text[0] = 0;
  return right->stream_create(d, s);
}
static const char* no_error(void) { return ""; }

/* Devices. */
static ob_status open_any(uint32_t index, ob_device* out) {
  (void)index;
  return right->device_open(0, out);
}
static ob_status open_late(uint32_t index, ob_device* out) {
  ob_status status = right->device_open(index, out);
  return status == OB_INVALID_ARGUMENT ? OB_INTERNAL : status;
}
static ob_status other_handle(uint32_t index, ob_device* out) {
  static int calls;
  ob_status status = right->device_open(index, out);
  if (status == OB_OK && ++calls == 2) *out = (ob_device)((char*)*out + 1); /* used for nothing after the comparison */
  return status;
}
static ob_status one_device_more(uint32_t* count) {
  static uint32_t calls;
  ob_status status = right->device_count(count);
  *count += calls++;
  return status;
}
#define PROPERTY(name, change)                                  \
  static ob_status name(ob_device d, ob_device_properties* p) { \
    ob_status status = right->device_properties(d, p);          \
    if (p->struct_size >= sizeof *p) change;                    \
    return status;                                              \
  }
PROPERTY(small_alignment, p->alignment = 8)
PROPERTY(large_alignment, p->alignment = 1 << 20)
PROPERTY(no_key, p->cache_key[0] = 0)
PROPERTY(strange_type, p->type = 7)
PROPERTY(strange_flag, p->has_fp16 = 255)
PROPERTY(large_allocation, p->max_allocation = p->total_memory + 1)
PROPERTY(compiler_without_functions, strcpy(p->compiler, "nobody 1"))
PROPERTY(accessible_by_name, p->host_accessible = 1)
PROPERTY(large_groups, p->max_work_group_size *= 2)
static uint32_t asked;
PROPERTY(changing, p->compute_units = ++asked)
static ob_status beyond_size(ob_device d, ob_device_properties* p) {
  ob_status status = right->device_properties(d, p);
  if (p->struct_size < sizeof *p) p->static_sizes = 0; /* also for callers who have no such field */
  return status;
}

/* Memory. */
static ob_ptr arena, arena_next;
static ob_status overlapping(ob_device d, uint64_t bytes, ob_ptr* ptr) {
  if (!arena && right->memory_alloc(d, 1 << 24, &arena) != OB_OK) return OB_OUT_OF_MEMORY;
  if (bytes > 1 << 16) return right->memory_alloc(d, bytes, ptr);
  *ptr = arena + arena_next % (1 << 20);
  arena_next += 64; /* for any number of bytes */
  return OB_OK;
}
static ob_status keep(ob_device d, ob_ptr ptr) {
  return ptr >= arena && ptr < arena + (1 << 24) ? OB_OK : right->memory_free(d, ptr);
}
static ob_status more_free_than_total(ob_device d, uint64_t* free_bytes, uint64_t* total) {
  *total = 1 << 20;
  *free_bytes = 1 << 21;
  return d ? OB_OK : OB_INTERNAL;
}

/* Streams and events. */
static ob_status no_wait(ob_stream s, int blocking) {
  ob_status status = right->stream_wait(s, 0);
  return status == OB_NOT_READY && blocking ? OB_OK : status;
}
static ob_status ready_at_once(ob_stream s, int blocking) {
  ob_status status = right->stream_wait(s, blocking);
  return status == OB_NOT_READY ? OB_OK : status;
}
static ob_status never_ready(ob_stream s, int blocking) { return blocking ? right->stream_wait(s, 1) : OB_NOT_READY; }
static ob_status no_wait_for_events(ob_stream s, ob_event e) { return s && e ? OB_OK : OB_INVALID_ARGUMENT; }
static ob_status event_no_wait(ob_event e, int blocking) {
  ob_status status = right->event_wait(e, 0);
  return status == OB_NOT_READY && blocking ? OB_OK : status;
}
static ob_status event_ready_at_once(ob_event e, int blocking) {
  ob_status status = right->event_wait(e, blocking);
  return status == OB_NOT_READY ? OB_OK : status;
}
static ob_event recorded[4096];
static size_t recorded_count;
static ob_status record_once(ob_event e, ob_stream s) {
  for (size_t i = 0; i < recorded_count; ++i) {
    if (recorded[i] == e) return OB_OK;
  }
  recorded[recorded_count++ % 4096] = e;
  return right->event_record(e, s);
}
static ob_status unrecorded_refused(ob_event e, int blocking) {
  for (size_t i = 0; i < recorded_count; ++i) {
    if (recorded[i] == e) return right->event_wait(e, blocking);
  }
  return OB_NOT_READY;
}
static ob_status note_record(ob_event e, ob_stream s) {
  recorded[recorded_count++ % 4096] = e;
  return right->event_record(e, s);
}
static ob_status microseconds(ob_event a, ob_event b, int64_t* out) {
  ob_status status = right->event_elapsed(a, b, out);
  *out /= 1000;
  return status;
}
static ob_status backwards(ob_event a, ob_event b, int64_t* out) {
  ob_status status = right->event_elapsed(a, b, out);
  *out = -*out;
  return status;
}
static ob_status hang(ob_stream s, ob_event e) {
  while (s && e) sleep(1);
  return OB_OK;
}

/* Data. */
static ob_status forwards(ob_stream s, ob_copy_kind kind, uint64_t dst, uint64_t src, uint64_t bytes) {
  if (kind != OB_DEVICE_TO_DEVICE) return right->copy(s, kind, dst, src, bytes);
  const uint64_t most = bytes > 1 << 20 ? bytes : 64;
  ob_status status = OB_OK; /* in pieces, the first one first */
  for (uint64_t done = 0; done < bytes && status == OB_OK; done += most) {
    const uint64_t rest = bytes - done;
    status = right->copy(s, kind, dst + done, src + done, rest < most ? rest : most);
  }
  return status;
}
static ob_status even_addresses(ob_stream s, ob_copy_kind kind, uint64_t dst, uint64_t src, uint64_t bytes) {
  if (kind == OB_HOST_TO_DEVICE) dst &= ~3ull;
  return right->copy(s, kind, dst, src, bytes);
}
static ob_status whole_words(ob_stream s, ob_copy_kind kind, uint64_t dst, uint64_t src, uint64_t bytes) {
  return right->copy(s, kind, dst, src, bytes > 64 ? bytes & ~3ull : bytes);
}
static ob_status a_byte_more(ob_stream s, ob_copy_kind kind, uint64_t dst, uint64_t src, uint64_t bytes) {
  return right->copy(s, kind, dst, src, kind == OB_DEVICE_TO_HOST && bytes < 1024 ? bytes + 1 : bytes);
}
static ob_status crash(ob_stream s, ob_copy_kind kind, uint64_t dst, uint64_t src, uint64_t bytes) {
  if (bytes == 3) abort();
  return right->copy(s, kind, dst, src, bytes);
}
static ob_status half_patterns(ob_stream s, ob_ptr dst, const void* pattern, uint32_t size, uint64_t bytes) {
  return right->fill(s, dst, pattern, size == 16 ? 8 : size, bytes);
}
static ob_status fill_whole_blocks(ob_stream s, ob_ptr dst, const void* pattern, uint32_t size, uint64_t bytes) {
  return right->fill(s, dst, pattern, size, bytes > 64 ? bytes / 64 * 64 : bytes);
}
static const void* late_pattern; /* of the last fill, which the next wait writes again, too late */
static ob_stream late_stream;
static ob_ptr late_dst;
static uint32_t late_size;
static uint64_t late_bytes;
static ob_status late_fill(ob_stream s, ob_ptr dst, const void* pattern, uint32_t size, uint64_t bytes) {
  late_stream = s, late_dst = dst, late_pattern = pattern, late_size = size, late_bytes = bytes;
  return right->fill(s, dst, pattern, size, bytes);
}
static ob_status late_wait(ob_stream s, int blocking) {
  if (late_pattern && late_stream == s) right->fill(s, late_dst, late_pattern, late_size, late_bytes);
  late_pattern = NULL;
  return right->stream_wait(s, blocking);
}

/* Programs. */
static ob_status build_internal(ob_device d, const char* source, const char* options, ob_program* p) {
  ob_status status = right->program_build(d, source, options, p);
  return status == OB_BUILD_FAILED ? OB_INTERNAL : status;
}
static ob_status build_without_options(ob_device d, const char* source, const char* options, ob_program* p) {
  return right->program_build(d, source, options ? "" : options, p);
}
static _Thread_local int hides_log;
static ob_status build_without_log(ob_device d, const char* source, const char* options, ob_program* p) {
  ob_status status = right->program_build(d, source, options, p);
  hides_log = status == OB_BUILD_FAILED;
  return status;
}
static const char* hidden_log(void) { return hides_log ? "it did not work" : right->last_error(); }
static ob_program any_program;
static ob_status note_build(ob_device d, const char* source, const char* options, ob_program* p) {
  ob_status status = right->program_build(d, source, options, p);
  if (status == OB_OK) any_program = *p;
  return status;
}
static ob_status load_anything(ob_device d, const void* bytes, size_t size, ob_program* p) {
  ob_status status = right->program_load(d, bytes, size, p);
  if (status == OB_OK) return status;
  *p = any_program;
  return OB_OK;
}
static ob_status long_binary(ob_program p, void* bytes, size_t* size) {
  ob_status status = right->program_binary(p, bytes, size);
  if (status == OB_OK && bytes) ((char*)bytes)[*size] = 0;
  return status;
}
static ob_status any_kernel(ob_program p, const char* name, ob_kernel* k) {
  return right->kernel_get(p, name, k) == OB_OK ? OB_OK : right->kernel_get(p, "scale", k);
}
static ob_status release_kept(ob_program p) { return right->program_release(p) == OB_OK ? OB_INTERNAL : OB_OK; }
static ob_status one_group_less(ob_stream s, ob_kernel k, const uint64_t g[3], const uint32_t l[3],
                                const ob_argument* a, uint32_t n) {
  const uint64_t global[3] = {l[0] && g[0] > l[0] ? g[0] - l[0] : g[0], g[1], g[2]};
  return right->launch(s, k, global, l, a, n);
}
static ob_status no_third_dimension(ob_stream s, ob_kernel k, const uint64_t g[3], const uint32_t l[3],
                                    const ob_argument* a, uint32_t n) {
  const uint64_t global[3] = {g[0], g[1], l[2] ? l[2] : 1};
  return right->launch(s, k, global, l, a, n);
}
static ob_status no_choice(ob_stream s, ob_kernel k, const uint64_t g[3], const uint32_t l[3], const ob_argument* a,
                           uint32_t n) {
  return l[0] ? right->launch(s, k, g, l, a, n) : OB_INVALID_ARGUMENT;
}
static ob_status other_stream(ob_stream s, ob_kernel k, const uint64_t g[3], const uint32_t l[3], const ob_argument* a,
                              uint32_t n) {
  static ob_stream mine;
  if (!mine && right->stream_create(device, &mine) != OB_OK) return OB_INTERNAL;
  return s ? right->launch(mine, k, g, l, a, n) : OB_INVALID_ARGUMENT;
}
static ob_status unlocked_arguments(ob_stream s, ob_kernel k, const uint64_t g[3], const uint32_t l[3],
                                    const ob_argument* a, uint32_t n) {
  static ob_argument slots[256]; /* of all threads */
  static uint64_t values[256];
  for (uint32_t i = 0; i < n && i < 256; ++i) {
    slots[i] = a[i];
    if (a[i].is_pointer) {
      memcpy(&values[i], a[i].value, 8);
    } else {
      memcpy(&values[i], a[i].value, a[i].size);
    }
    slots[i].value = &values[i];
  }
  usleep(200);
  return right->launch(s, k, g, l, slots, n);
}
static ob_status last_of_batch(ob_stream s, const ob_launch* launches, uint32_t count) {
  return right->launch_batch(s, launches, count - 1);
}
static ob_status kernel_needs_more(ob_kernel k, ob_kernel_properties* p) {
  ob_status status = right->kernel_properties(k, p);
  p->max_work_group_size = 1 << 30;
  return status;
}
static ob_stream capturing;
static ob_status begin_and_run(ob_stream s) {
  capturing = s;
  return right->capture_begin(s);
}
static ob_status captured_too_early(ob_stream s, ob_kernel k, const uint64_t g[3], const uint32_t l[3],
                                    const ob_argument* a, uint32_t n) {
  if (s == capturing) {
    ob_stream other;
    right->stream_create(device, &other);
    right->launch(other, k, g, l, a, n);
    right->stream_wait(other, 1);
    right->stream_destroy(other);
  }
  return right->launch(s, k, g, l, a, n);
}
static ob_status end_capture(ob_stream s, void** graph) {
  capturing = NULL;
  return right->capture_end(s, graph);
}
static ob_status graph_once(ob_stream s, void* graph) {
  static void* seen;
  if (graph == seen) return OB_OK;
  seen = graph;
  return right->graph_launch(s, graph);
}
static ob_status supports_nothing(ob_device d, const char* name, const ob_operand* o, uint32_t n, ob_function* f) {
  ob_status status = right->library_find(d, name, o, n, f);
  return status == OB_UNSUPPORTED ? OB_INTERNAL : status;
}
static ob_status load_any_function(ob_device d, const void* bytes, size_t size, ob_function* f) {
  static ob_function any;
  ob_status status = right->function_load(d, bytes, size, f);
  if (status == OB_OK) any = *f;
  if (status != OB_BUILD_FAILED) return status;
  *f = any;
  return OB_OK;
}
static ob_status load_internal(ob_device d, const void* bytes, size_t size, ob_function* f) {
  ob_status status = right->function_load(d, bytes, size, f);
  return status == OB_BUILD_FAILED ? OB_INTERNAL : status;
}
static ob_status call_aligned(ob_stream s, ob_function f, const ob_operand* o, uint32_t n) {
  ob_operand operands[16];
  for (uint32_t i = 0; i < n && i < 16; ++i) {
    operands[i] = o[i];
    if (o[i].kind == OB_OPERAND_TENSOR) operands[i].data &= ~63ull;
  }
  return right->library_call(s, f, operands, n);
}
/* Each integer of 64 bits among the inputs becomes what `change` makes of it; `rows`: of the first operand. */
static void change_integers(ob_stream s, const ob_operand* o, uint32_t n, int64_t (*change)(int64_t, int64_t rows)) {
  enum { kInt64 = 4, kMost = 4096 };
  static _Thread_local int64_t values[kMost];
  for (uint32_t i = 0; i < n; ++i) {
    uint64_t count = 1;
    if (o[i].kind != OB_OPERAND_TENSOR || o[i].dtype != kInt64 || o[i].is_result) continue;
    for (uint32_t d = 0; d < o[i].count; ++d) count *= (uint64_t)o[i].sizes[d];
    if (count > kMost) continue;
    right->copy(s, OB_DEVICE_TO_HOST, (uint64_t)(uintptr_t)values, o[i].data, count * sizeof(int64_t));
    right->stream_wait(s, 1);
    for (uint64_t k = 0; k < count; ++k) values[k] = change(values[k], o[0].sizes[0]);
    right->copy(s, OB_HOST_TO_DEVICE, o[i].data, (uint64_t)(uintptr_t)values, count * sizeof(int64_t));
    right->stream_wait(s, 1);
  }
}
static int64_t as_double(int64_t value, int64_t rows) {
  (void)rows;
  return (int64_t)(double)value;
}
static int64_t as_int(int64_t value, int64_t rows) {
  (void)rows;
  return (int32_t)value;
}
static int64_t clamped(int64_t value, int64_t rows) { return value < 0 ? 0 : value < rows ? value : rows - 1; }
static ob_status call_with_doubles(ob_stream s, ob_function f, const ob_operand* o, uint32_t n) {
  change_integers(s, o, n, as_double);
  return right->library_call(s, f, o, n);
}
static ob_status call_with_ints(ob_stream s, ob_function f, const ob_operand* o, uint32_t n) {
  change_integers(s, o, n, as_int);
  return right->library_call(s, f, o, n);
}
static ob_status call_clamped(ob_stream s, ob_function f, const ob_operand* o, uint32_t n) {
  change_integers(s, o, n, clamped);
  return right->library_call(s, f, o, n);
}
static ob_status index_error_is_internal(ob_stream s, int block) {
  ob_status status = right->stream_wait(s, block);
  return status == OB_INDEX_ERROR ? OB_INTERNAL : status;
}

static ob_status sizes_of_first(ob_stream s, ob_function f, const ob_operand* o, uint32_t n) {
  static struct {
    ob_function f;
    int64_t sizes[16][4], strides[16][4];
  } first[16]; /* by function; the example has few operands of few dimensions */
  static uint32_t known;
  ob_operand operands[16];
  uint32_t at = 0;
  while (at < known && first[at].f != f) ++at;
  for (uint32_t i = 0; i < n && i < 16; ++i) {
    operands[i] = o[i];
    if (at == known) memcpy(first[at].sizes[i], o[i].sizes, o[i].count * sizeof(int64_t));
    if (at == known) memcpy(first[at].strides[i], o[i].strides, o[i].count * sizeof(int64_t));
    operands[i].sizes = first[at].sizes[i];
    operands[i].strides = first[at].strides[i];
  }
  first[at].f = f;
  if (at == known) ++known;
  return right->library_call(s, f, operands, n);
}

static ob_status no_reset(ob_device d, ob_device* fresh) {
  *fresh = d;
  return OB_OK;
}
static ob_device another; /* which the caller takes for its own, as new */
static ob_status other_device(ob_device d, ob_device* fresh) {
  static uint32_t index;
  ob_status status = right->device_open(++index, &another);
  *fresh = another;
  return d ? status : OB_INTERNAL;
}
static ob_status open_another(uint32_t index, ob_device* d) {
  if (!another || index) return right->device_open(index, d);
  *d = another;
  return OB_OK;
}
static ob_status lost_is_internal(ob_stream s, int blocking) {
  ob_status status = right->stream_wait(s, blocking);
  return status == OB_DEVICE_LOST ? OB_INTERNAL : status;
}
static ob_status too_busy(ob_device d, ob_sensors* sensors) {
  ob_status status = right->device_sensors(d, sensors);
  sensors->compute_busy = 250;
  return status;
}
static ob_status all_sensors(ob_device d, ob_sensors* sensors) {
  ob_status status = right->device_sensors(d, sensors);
  sensors->power = 0; /* also for callers who have no such field */
  return status;
}

/* Each fault: its name, and what it does to the table. */
#define FAULTS                                                                                              \
  FAULT(another_version, wrong.abi_major = 9)                                                               \
  FAULT(half_a_group, wrong.capture_end = NULL; wrong.capture_begin = begin_and_run)                        \
  FAULT(no_fill, wrong.fill = NULL)                                                                         \
  FAULT(no_error_text, wrong.last_error = no_error)                                                         \
  FAULT(shared_error_text, wrong.last_error = shared_error; wrong.device_open = open_with_shared_text;      \
        wrong.stream_create = create_with_shared_text)                                                      \
  FAULT(any_device_opens, wrong.device_open = open_any)                                                     \
  FAULT(wrong_status_of_open, wrong.device_open = open_late)                                                \
  FAULT(another_handle, wrong.device_open = other_handle)                                                   \
  FAULT(devices_grow, wrong.device_count = one_device_more)                                                 \
  FAULT(writes_beyond_struct_size, wrong.device_properties = beyond_size)                                   \
  FAULT(alignment_of_8, wrong.device_properties = small_alignment)                                          \
  FAULT(alignment_not_kept, wrong.device_properties = large_alignment)                                      \
  FAULT(no_cache_key, wrong.device_properties = no_key)                                                     \
  FAULT(type_out_of_range, wrong.device_properties = strange_type)                                          \
  FAULT(flag_of_255, wrong.device_properties = strange_flag)                                                \
  FAULT(allocation_above_total, wrong.device_properties = large_allocation)                                 \
  FAULT(compiler_in_name_only, wrong.device_properties = compiler_without_functions)                        \
  FAULT(accessible_in_name_only, wrong.device_properties = accessible_by_name)                              \
  FAULT(groups_too_large, wrong.device_properties = large_groups)                                           \
  FAULT(properties_change, wrong.device_properties = changing)                                              \
  FAULT(allocations_overlap, wrong.memory_alloc = overlapping; wrong.memory_free = keep)                    \
  FAULT(more_free_memory_than_there_is, wrong.memory_info = more_free_than_total)                           \
  FAULT(wait_does_not_wait, wrong.stream_wait = no_wait)                                                    \
  FAULT(ready_too_early, wrong.stream_wait = ready_at_once)                                                 \
  FAULT(never_becomes_ready, wrong.stream_wait = never_ready)                                               \
  FAULT(streams_ignore_events, wrong.stream_wait_event = no_wait_for_events)                                \
  FAULT(hangs, wrong.stream_wait_event = hang)                                                              \
  FAULT(event_does_not_wait, wrong.event_wait = event_no_wait)                                              \
  FAULT(event_ready_too_early, wrong.event_wait = event_ready_at_once)                                      \
  FAULT(event_recorded_once, wrong.event_record = record_once)                                              \
  FAULT(unrecorded_is_not_reached, wrong.event_wait = unrecorded_refused; wrong.event_record = note_record) \
  FAULT(time_in_microseconds, wrong.event_elapsed = microseconds)                                           \
  FAULT(time_goes_backwards, wrong.event_elapsed = backwards)                                               \
  FAULT(overlap_is_torn, wrong.copy = forwards)                                                             \
  FAULT(odd_addresses_rounded, wrong.copy = even_addresses)                                                 \
  FAULT(odd_sizes_rounded, wrong.copy = whole_words)                                                        \
  FAULT(copies_a_byte_more, wrong.copy = a_byte_more)                                                       \
  FAULT(crashes, wrong.copy = crash)                                                                        \
  FAULT(long_patterns_cut, wrong.fill = half_patterns)                                                      \
  FAULT(fills_whole_blocks, wrong.fill = fill_whole_blocks)                                                 \
  FAULT(pattern_read_late, wrong.fill = late_fill; wrong.stream_wait = late_wait)                           \
  FAULT(build_failure_is_internal, wrong.program_build = build_internal)                                    \
  FAULT(build_without_log, wrong.program_build = build_without_log; wrong.last_error = hidden_log)          \
  FAULT(options_ignored, wrong.program_build = build_without_options)                                       \
  FAULT(loads_anything, wrong.program_build = note_build; wrong.program_load = load_anything)               \
  FAULT(binary_longer_than_said, wrong.program_binary = long_binary)                                        \
  FAULT(any_kernel_name, wrong.kernel_get = any_kernel)                                                     \
  FAULT(release_fails, wrong.program_release = release_kept)                                                \
  FAULT(a_group_too_few, wrong.launch = one_group_less)                                                     \
  FAULT(two_dimensions, wrong.launch = no_third_dimension)                                                  \
  FAULT(no_choice_of_group, wrong.launch = no_choice)                                                       \
  FAULT(launch_out_of_order, wrong.launch = other_stream)                                                   \
  FAULT(shared_argument_slots, wrong.launch = unlocked_arguments)                                           \
  FAULT(batch_loses_one, wrong.launch_batch = last_of_batch)                                                \
  FAULT(kernel_needs_the_impossible, wrong.kernel_properties = kernel_needs_more)                           \
  FAULT(capture_runs, wrong.capture_begin = begin_and_run; wrong.capture_end = end_capture;                 \
        wrong.launch = captured_too_early)                                                                  \
  FAULT(graph_runs_once, wrong.graph_launch = graph_once)                                                   \
  FAULT(unsupported_is_internal, wrong.library_find = supports_nothing)                                     \
  FAULT(executable_unchecked, wrong.function_load = load_any_function)                                      \
  FAULT(executable_failure_is_internal, wrong.function_load = load_internal)                                \
  FAULT(executable_operands_rounded, wrong.library_call = call_aligned)                                     \
  FAULT(sizes_of_the_first_call, wrong.library_call = sizes_of_first)                                       \
  FAULT(executable_integers_are_doubles, wrong.library_call = call_with_doubles)                            \
  FAULT(executable_integers_of_32_bits, wrong.library_call = call_with_ints)                                \
  FAULT(executable_indices_clamped, wrong.library_call = call_clamped)                                      \
  FAULT(executable_index_error_is_internal, wrong.stream_wait = index_error_is_internal)                    \
  FAULT(reset_does_nothing, wrong.device_reset = no_reset)                                                  \
  FAULT(reset_leaves_the_old_one, wrong.device_reset = other_device; wrong.device_open = open_another)      \
  FAULT(reset_is_an_internal_error, wrong.stream_wait = lost_is_internal)                                   \
  FAULT(busy_of_250, wrong.device_sensors = too_busy)                                                       \
  FAULT(sensors_beyond_struct_size, wrong.device_sensors = all_sensors)

const ob_driver* outboard_driver(void) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&mutex);
  if (right == NULL) {
    void* library = dlopen(getenv("OUTBOARD_WRONG_DRIVER"), RTLD_NOW | RTLD_LOCAL);
    ob_driver_entry entry = library ? (ob_driver_entry)dlsym(library, OB_DRIVER_ENTRY_NAME) : NULL;
    if (entry == NULL) {
      fprintf(stderr, "wrong_driver: %s\n", dlerror());
      pthread_mutex_unlock(&mutex);
      return NULL;
    }
    right = entry();
    memcpy(&wrong, right, right->struct_size < sizeof wrong ? right->struct_size : sizeof wrong);
    wrong.struct_size = sizeof wrong;
    right->device_open(0, &device);
    const char* fault = getenv("OUTBOARD_WRONG");
#define FAULT(name, change)                 \
  if (fault && strcmp(fault, #name) == 0) { \
    change;                                 \
  }
    FAULTS
#undef FAULT
  }
  pthread_mutex_unlock(&mutex);
  return &wrong;
}
