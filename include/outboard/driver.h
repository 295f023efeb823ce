/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract between Outboard and hardware.
 *
 * A driver is a shared library that exports one symbol, `outboard_driver`, returning a pointer to
 * an immutable `ob_driver` table with static lifetime. The table is plain C; no exception may
 * cross it.
 *
 * Versioning. `struct_size` is the size of the struct the *driver* was compiled with; a field is
 * present if it lies wholly within that size. New fields are only appended, and raise
 * OB_ABI_MINOR. Anything else raises OB_ABI_MAJOR, and the runtime refuses the driver.
 *
 * Errors. Every call returns an `ob_status`. After a status other than OB_OK or OB_NOT_READY,
 * `last_error` gives the text for the calling thread, valid until that thread's next call. A call that
 * submits work and fails may have submitted it nevertheless: the caller waits as if it had.
 *
 * Errors of queued work. What fails after its call returned is reported by the next wait for its stream, once, by
 * waits for events that were recorded behind it, and by the next wait for each stream that waits for such an event.
 * Later work of the stream may run or not; the stream stays usable.
 *
 * Waits. Only a wait that returns OB_OK says that work is finished. Any other status, OB_DEVICE_LOST included, says
 * nothing: the work may still run, and may still read and write host memory and device memory. Who gets one keeps that
 * memory and waits again, or keeps it for ever.
 *
 * Lost devices. After a call on a device returned OB_DEVICE_LOST, every later call on the device, its streams, events,
 * programs and kernels returns it too, at once and without waiting, except that what destroys, frees or releases may
 * return OB_OK. Other devices are not concerned. Where the driver has `device_reset`, that still works, once.
 *
 * Threads. Every function may be called from any thread. Calls on one stream are ordered by the
 * caller; the driver serialises whatever else it shares (kernel argument slots, for instance).
 *
 * Lifetimes. Handles live until the call that destroys them; a kernel lives as long as its
 * program. Destroying a stream, an event or a program that queued work still uses is allowed: the driver defers it.
 * Memory is another matter: `memory_free` and `host_free` are called after a wait for all work that uses the memory
 * succeeded, and need not defer anything.
 *
 * Limits. The caller never asks for more than `ob_device_properties` declares: no larger allocation or work-group, no
 * more bytes of arguments, no program with `double` where there is no has_fp64, or with 64-bit atomics where there is
 * no has_int64_atomics. 0 in a limit that a driver is too old to know means the least that OpenCL allows.
 */
#ifndef OUTBOARD_DRIVER_H_
#define OUTBOARD_DRIVER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OB_ABI_MAJOR 1
#define OB_ABI_MINOR 13

typedef enum ob_status {
  OB_OK = 0,
  OB_NOT_READY = 1,        /* a non-blocking wait found unfinished work; not an error */
  OB_INVALID_ARGUMENT = 2, /* a handle, size or name the driver does not accept */
  OB_OUT_OF_MEMORY = 3,    /* device or pinned memory exhausted; the caller may free and retry */
  OB_UNSUPPORTED = 4,      /* the device cannot do this */
  OB_BUILD_FAILED = 5,     /* the compiler refused a program; last_error holds its log */
  OB_DEVICE_LOST = 6,      /* the device failed; every later call on it fails the same way */
  OB_INTERNAL = 7,         /* anything else */
  OB_INDEX_ERROR = 8,      /* since minor version 13, of executables: an index is outside of its dimension */
  OB_VALUE_ERROR = 9       /* since minor version 13, of executables: another value that PyTorch refuses */
} ob_status;

typedef struct ob_device_t* ob_device;
typedef struct ob_stream_t* ob_stream;
typedef struct ob_event_t* ob_event;
typedef struct ob_program_t* ob_program;
typedef struct ob_kernel_t* ob_kernel;
typedef struct ob_function_t* ob_function;
typedef struct ob_communicator_t* ob_communicator;

/* An address in device memory. Interior addresses (base + offset) are valid wherever one is taken. */
typedef uint64_t ob_ptr;

typedef enum ob_device_type { OB_DEVICE_CPU = 0, OB_DEVICE_GPU = 1, OB_DEVICE_ACCELERATOR = 2 } ob_device_type;

/* How a device likes its programs; correctness never depends on it. */
typedef enum ob_execution {
  OB_EXECUTION_UNKNOWN = 0, /* as `vector_width` says: VECTOR if it is above 1 */
  OB_EXECUTION_VECTOR = 1,  /* explicit vectors in long loops over neighbours, one work-item in a work-group */
  OB_EXECUTION_SIMT = 2     /* many short work-items that run side by side and share loads of neighbours */
} ob_execution;

/* What a device can do. Filled by device_properties; the caller sets struct_size first. */
typedef struct ob_device_properties {
  size_t struct_size;
  char name[256];               /* out: what a user calls it */
  char vendor[128];             /* out */
  char driver_version[256];     /* out */
  char dialect[32];             /* out: language of programs: "opencl-c", "cuda"; "" without a compiler */
  char cache_key[256];          /* out: changes whenever a program binary made before is no longer valid */
  ob_device_type type;          /* out: for users to know; it decides nothing about programs */
  uint32_t compute_units;       /* out */
  uint32_t max_work_group_size; /* out */
  uint32_t sub_group_size;      /* out: 1 where there are no sub-groups whose work-items can shuffle */
  uint32_t vector_width;        /* out: preferred float lanes per work-item; 1 on SIMT devices */
  uint64_t total_memory;        /* out: bytes */
  uint64_t max_allocation;      /* out: bytes in one allocation; 0: as much as total_memory */
  uint64_t local_memory;        /* out: bytes per work-group */
  uint64_t alignment;           /* out: bytes every allocation is aligned to, a multiple of 16 */
  uint8_t host_accessible;      /* out: 1 if the host may dereference an ob_ptr while the device is idle */
  uint8_t has_fp16;             /* out: arithmetic in half precision, for users to know: programs do without */
  uint8_t has_fp64;             /* out */
  uint8_t has_int64_atomics;    /* out: atomic additions and exchanges of 64-bit words of global memory */
  uint8_t serial_builds;        /* out, since minor version 1: 1 if builds in one process wait for each other */
  /* out, since minor version 5: bytes of all arguments of one launch, 8 for a pointer; 0: 1024 */
  uint32_t max_argument_bytes;
  uint32_t execution;  /* out, since minor version 6: an ob_execution */
  uint64_t near_cache; /* out, since minor version 6: bytes of a compute unit's fastest cache of data; 0: unknown */
  uint64_t last_cache; /* out, since minor version 6: bytes of the last cache before memory; 0: unknown */
  /* out, since minor version 7: name and version of what `library_find` finds functions in, "" if that is nothing.
   * Changes whenever a function found before may be there no more. */
  char library[128];
  /* out, since minor version 10: name and version of what makes the bytes that `function_load` takes, as "mycc 1.2", ""
   * without such a compiler. Changes whenever bytes made before are no longer valid. */
  char compiler[128];
  /* out, since minor version 10: 1 if such bytes are made for one set of sizes and strides; 0: the operands of each
   * call have sizes of their own, 1 included */
  uint8_t static_sizes;
  /* out, since minor version 10: 1 if any address of the process is an ob_ptr, too: of pages that the driver did not
   * give, and that are never given to `memory_free` */
  uint8_t takes_host_memory;
  /* out, since minor version 12: 1 if sub-groups of 32 work-items multiply small matrices of halves, by the words of
   * the dialect for it */
  uint8_t matrix_units;
} ob_device_properties;

typedef enum ob_copy_kind { OB_HOST_TO_DEVICE = 0, OB_DEVICE_TO_HOST = 1, OB_DEVICE_TO_DEVICE = 2 } ob_copy_kind;

/* How much of the host's or device's a kernel needs. The caller sets struct_size first. Since minor version 5. */
typedef struct ob_kernel_properties {
  size_t struct_size;
  uint32_t max_work_group_size; /* out: of this kernel, at most the device's */
  uint64_t local_memory;        /* out: bytes per work-group */
} ob_kernel_properties;

/* One kernel argument. A pointer is 0 or lies in an allocation, or at its end if the kernel does not use it. */
typedef struct ob_argument {
  uint32_t is_pointer; /* 1: `value` points to an ob_ptr; 0: `value` points to `size` bytes by value */
  uint32_t size;       /* bytes of a by-value argument; ignored for pointers */
  const void* value;   /* read during the call only */
} ob_argument;

/* One launch of a batch: what `launch` takes. */
typedef struct ob_launch {
  ob_kernel kernel;
  uint64_t global[3];
  uint32_t local[3];
  uint32_t argument_count;
  const ob_argument* arguments; /* read during the call only */
} ob_launch;

/* What an operator of PyTorch takes. Since minor version 7. */
typedef enum ob_operand_kind {
  OB_OPERAND_NONE = 0,    /* an optional argument that is left out */
  OB_OPERAND_TENSOR = 1,  /* `data`, `dtype`, `count` sizes and strides; of a result, too */
  OB_OPERAND_INTEGER = 2, /* `integer`; of truth values 0 and 1 */
  OB_OPERAND_NUMBER = 3,  /* `number` */
  OB_OPERAND_INTEGERS = 4 /* `count` numbers at `sizes` */
} ob_operand_kind;

/* One argument or result of a library function. What it points to is read during the call only. */
typedef struct ob_operand {
  uint32_t kind;          /* an ob_operand_kind */
  uint32_t dtype;         /* of a tensor: the number that PyTorch has for it (c10::ScalarType) */
  uint32_t count;         /* of a tensor: dimensions */
  uint32_t is_result;     /* 1: the function writes it, and its old contents count for nothing */
  ob_ptr data;            /* element 0; in `library_find` how it will be aligned: a power of two, 0 for any */
  const int64_t* sizes;   /* elements; of a tensor, none is 0 */
  const int64_t* strides; /* elements, none negative; no two elements share memory */
  int64_t integer;
  double number;
} ob_operand;

/* What members of a communicator do together. Since minor version 8. `count` is the same for all of them. */
typedef enum ob_collective_kind {
  OB_ALL_REDUCE = 0,     /* `count` elements: of all sources, reduced, to each target */
  OB_BROADCAST = 1,      /* `count` elements: of the root's source to each target */
  OB_REDUCE = 2,         /* `count` elements: of all sources, reduced, to the root's target */
  OB_ALL_GATHER = 3,     /* each source of `count` elements to each target, which has them in the order of ranks */
  OB_REDUCE_SCATTER = 4, /* of sources with `count` elements for each rank, each rank's, reduced, to its target */
  OB_ALL_TO_ALL = 5      /* as many elements from each to each as `sent` and `received` say */
} ob_collective_kind;

typedef enum ob_reduction {
  OB_SUM = 0,
  OB_PRODUCT = 1,
  OB_MIN = 2,
  OB_MAX = 3,
  OB_BIT_AND = 4, /* of integers, as the next two */
  OB_BIT_OR = 5,
  OB_BIT_XOR = 6,
  OB_MEAN = 7 /* of integers: the sum, divided without a remainder */
} ob_reduction;

/* One member's part of a collective. The caller sets struct_size first. Since minor version 8. */
typedef struct ob_collective {
  size_t struct_size;
  uint32_t kind;      /* an ob_collective_kind */
  uint32_t reduction; /* an ob_reduction; ignored by kinds that only move */
  uint32_t dtype;     /* the number that PyTorch has for it (c10::ScalarType) */
  uint32_t root;      /* rank, of OB_BROADCAST and OB_REDUCE */
  /* Dense elements in one allocation. Who is not the root has no source in OB_BROADCAST and no target in OB_REDUCE: 0.
   * The target may be the source, or the source this rank's part of it, or it this rank's part of the source, but not
   * in OB_ALL_TO_ALL; else they do not overlap. */
  ob_ptr source;
  ob_ptr target;
  uint64_t count; /* elements, not 0; ignored by OB_ALL_TO_ALL */
  /* Of OB_ALL_TO_ALL: elements to and from each rank, which lie one after the other; read during the call only. What
   * has no elements may be at address 0. */
  const uint64_t* sent;
  const uint64_t* received;
} ob_collective;

/* What a sensor says that is not there. */
#define OB_NOT_KNOWN INT64_MIN

/* What the sensors of a device say. The caller sets struct_size first, and the rest to OB_NOT_KNOWN. Since minor
 * version 11. */
typedef struct ob_sensors {
  size_t struct_size;
  int64_t memory_used;  /* out: bytes of the device's memory that any process uses */
  int64_t compute_busy; /* out: percent of the time since a moment ago in which the device computed */
  int64_t memory_busy;  /* out: percent of that time in which its memory was read or written */
  int64_t temperature;  /* out: degrees Celsius */
  int64_t power;        /* out: milliwatts */
  int64_t clock;        /* out: MHz, of what computes */
} ob_sensors;

/* What rank 0 hands to the other members of a communicator to find it. */
#define OB_COMMUNICATOR_ID_BYTES 128

typedef struct ob_driver {
  size_t struct_size;
  uint32_t abi_major;
  uint32_t abi_minor;
  const char* name; /* "opencl", "cuda", "sim" */

  /* ---- required: devices ---- */
  const char* (*last_error)(void);
  /* Number of usable devices. OB_OK with 0 when there is no hardware or no vendor library; then
   * last_error says what is missing. */
  ob_status (*device_count)(uint32_t* count /* out */);
  /* Opening the same index again returns the same handle. */
  ob_status (*device_open)(uint32_t index, ob_device* device /* out */);
  ob_status (*device_properties)(ob_device device, ob_device_properties* properties /* out */);

  /* ---- required: memory ---- */
  /* `bytes` is not 0. The contents are undefined. */
  ob_status (*memory_alloc)(ob_device device, uint64_t bytes, ob_ptr* ptr /* out */);
  ob_status (*memory_free)(ob_device device, ob_ptr ptr);

  /* ---- required: streams (in order; work on different streams is unordered) ---- */
  ob_status (*stream_create)(ob_device device, ob_stream* stream /* out */);
  ob_status (*stream_destroy)(ob_stream stream);
  /* blocking = 0: OB_OK if all work so far is finished, else OB_NOT_READY. See "Waits" above. */
  ob_status (*stream_wait)(ob_stream stream, int blocking);
  /* Work submitted to `stream` after this call starts only after `event` is reached, which may be of another device of
   * the driver's. */
  ob_status (*stream_wait_event)(ob_stream stream, ob_event event);

  /* ---- required: events ---- */
  ob_status (*event_create)(ob_device device, ob_event* event /* out */);
  ob_status (*event_destroy)(ob_event event);
  ob_status (*event_record)(ob_event event, ob_stream stream);
  /* An event never recorded counts as reached. */
  ob_status (*event_wait)(ob_event event, int blocking);
  /* Nanoseconds on the device's clock from `start` to `end`, both recorded and reached. */
  ob_status (*event_elapsed)(ob_event start, ob_event end, int64_t* nanoseconds /* out */);

  /* ---- required: data movement (asynchronous) ----
   * Host memory belongs to the copy until a wait for it succeeded: nobody writes, frees or, if the copy writes it,
   * reads it before. A driver may be done with it sooner, but nobody is told. Ranges of device memory lie in one
   * allocation.
   */
  /* The ranges may overlap: the target receives what the source held before. */
  ob_status (*copy)(ob_stream stream, ob_copy_kind kind, uint64_t dst, uint64_t src, uint64_t bytes);
  /* Fills with a pattern of 1, 2, 4, 8 or 16 bytes, read during the call; `dst` and `bytes` are multiples of its size.
   */
  ob_status (*fill)(ob_stream stream, ob_ptr dst, const void* pattern, uint32_t pattern_size, uint64_t bytes);

  /* ---- required: programs ---- */
  /* `options` are those of the dialect's compiler, separated by spaces, never NULL: of "opencl-c" what clBuildProgram
   * takes (-cl-std=CL3.0, -D NAME=VALUE, ...), of "cuda" what NVRTC takes. */
  ob_status (*program_build)(ob_device device, const char* source, const char* options, ob_program* program /* out */);
  ob_status (*program_load)(ob_device device, const void* binary, size_t bytes, ob_program* program /* out */);
  /* With binary = NULL only the size is returned. */
  ob_status (*program_binary)(ob_program program, void* binary /* out */, size_t* bytes /* in, out */);
  ob_status (*program_release)(ob_program program);
  ob_status (*kernel_get)(ob_program program, const char* name, ob_kernel* kernel /* out */);
  /* `global` counts work-items per dimension and is a multiple of `local`; local[0] = 0 lets the driver choose. */
  ob_status (*launch)(ob_stream stream, ob_kernel kernel, const uint64_t global[3], const uint32_t local[3],
                      const ob_argument* arguments, uint32_t argument_count);

  /* ---- optional, NULL when absent: memory ---- */
  ob_status (*memory_info)(ob_device device, uint64_t* free_bytes /* out */, uint64_t* total_bytes /* out */);
  /* Page-locked host memory for asynchronous copies. Without it, ordinary memory is used. */
  ob_status (*host_alloc)(ob_device device, uint64_t bytes, void** ptr /* out */);
  ob_status (*host_free)(ob_device device, void* ptr);
  /* ---- optional: peers; `stream` is of the source's device, and the caller has waited for the target's work ---- */
  ob_status (*copy_peer)(ob_stream stream, ob_device dst_device, ob_ptr dst, ob_device src_device, ob_ptr src,
                         uint64_t bytes);
  /* ---- optional, all or none: graphs of launches ---- */
  /* Between begin and end, `launch` on the stream, which nobody else uses, records and does not run. OB_UNSUPPORTED:
   * this device has no graphs; the runtime then submits launch by launch. */
  ob_status (*capture_begin)(ob_stream stream);
  /* After a failed launch, too: then `graph` may be NULL. */
  ob_status (*capture_end)(ob_stream stream, void** graph /* out */);
  /* Submits what was recorded, on any stream of the device, also while an earlier submission of it has not finished. */
  ob_status (*graph_launch)(ob_stream stream, void* graph);
  /* Nothing that was submitted is left to do. */
  ob_status (*graph_destroy)(void* graph);
  /* ---- optional, since minor version 2: launches that run on the calling thread ---- */
  /* About how many nanoseconds `launch` would take the caller, from what it took before; UINT64_MAX if unknown. The
   * runtime has a thread that calls `launch`; what takes less than handing it to that thread, it launches at once. */
  uint64_t (*launch_cost)(ob_kernel kernel, const uint64_t global[3], const uint32_t local[3]);
  /* ---- optional, since minor version 3: memory that is slow when used for the first time ---- */
  /* `memory_alloc` will soon be asked for about this much in all. Returns at once; the driver may make the memory ready
   * meanwhile, and gives back what is not asked for. */
  ob_status (*memory_expect)(ob_device device, uint64_t bytes);
  /* ---- optional, since minor version 4: launches that need not wait for one another ---- */
  /* As `launch` for each, except that they may run in any order and at the same time: none writes what another reads or
   * writes. Work before and after is ordered as ever. If some fail, the others are launched nevertheless, and the
   * status is that of a failed one. Not called while a graph is captured. */
  ob_status (*launch_batch)(ob_stream stream, const ob_launch* launches, uint32_t count);
  /* ---- optional, since minor version 5: what a kernel needs ---- */
  /* The runtime then refuses launches that the device would fail, and says why. */
  ob_status (*kernel_properties)(ob_kernel kernel, ob_kernel_properties* properties /* out */);
  /* ---- optional, both or neither, since minor version 7: ready functions of a vendor's library ---- */
  /* The function that carries out an operator of PyTorch, "aten::mm", on operands such as these: all arguments of the
   * operator's schema in order, then its results. OB_UNSUPPORTED if there is none. It lives as long as the device, and
   * asking again, or for other sizes, may give the same. The compiler measures it against its own kernels, and uses
   * what is faster, for other sizes of the same number of digits as well: the runtime asks again for each. */
  ob_status (*library_find)(ob_device device, const char* name, const ob_operand* operands, uint32_t count,
                            ob_function* function /* out */);
  /* Submits it, with the operands that it was found for, now with their addresses. */
  ob_status (*library_call)(ob_stream stream, ob_function function, const ob_operand* operands, uint32_t count);
  /* ---- optional, all or none, since minor version 8: collectives between processes ---- */
  /* Whether communicators of this device carry out a kind with a dtype and, if it reduces, a reduction: OB_OK, or
   * OB_UNSUPPORTED, also where the device has no collectives at all. Drivers of one `name` and `driver_version` answer
   * alike wherever they are. Kinds that only move are asked for with elements of one byte (dtype 0). */
  ob_status (*collective_supported)(ob_device device, uint32_t kind, uint32_t dtype, uint32_t reduction);
  /* A new communicator's id, of OB_COMMUNICATOR_ID_BYTES bytes, on the machine and in the process of rank 0. */
  ob_status (*communicator_id)(ob_device device, void* id /* out */);
  /* Joins `size` members as number `rank`, each with a device of its own. A driver with `communicator_joined` does not
   * wait for the others where `milliseconds` is 0: members go on joining after the call. Any driver waits otherwise,
   * and OB_NOT_READY says that not all came within so many milliseconds: then there is no communicator, and nobody can
   * join it any more. */
  ob_status (*communicator_create)(ob_device device, const void* id, uint32_t rank, uint32_t size,
                                   uint64_t milliseconds, ob_communicator* communicator /* out */);
  /* After a wait for its work succeeded or after communicator_abort. Does not wait for other members. */
  ob_status (*communicator_destroy)(ob_communicator communicator);
  /* Once, from any thread, also while `collective` or `communicator_joined` is called: collectives that are queued or
   * under way fail soon, as queued work does, later ones at once, and members that are still joining give that up.
   * Other members may be told, or wait until they abort, too. */
  ob_status (*communicator_abort)(ob_communicator communicator);
  /* Submits this member's part, in stream order, on a stream of the communicator's device. All members submit the same
   * collectives in the same order, one after the other, but at any time. If they do not, those that the driver can tell
   * fail, and the others wait. Reductions have the same bits on all members that get them. */
  ob_status (*collective)(ob_stream stream, ob_communicator communicator, const ob_collective* collective);
  /* ---- optional, since minor version 9: joining a communicator without waiting in the driver ---- */
  /* Whether all members of a communicator that was created with 0 milliseconds have joined: OB_OK, OB_NOT_READY, or
   * what went wrong, such as a member that gave up; then the communicator is only aborted and destroyed. Does not wait.
   * `collective` is called after OB_OK. Members may be missing for as long as people are patient, and who waits for
   * them must be able to stop: so the runtime asks this again and again, and aborts. Libraries with joins of that kind
   * (NCCL and RCCL: ncclConfig_t.blocking = 0, ncclCommGetAsyncError, ncclCommAbort) map one to one. One that only
   * blocks leaves this NULL, and obeys the milliseconds: the runtime then calls communicator_create on a thread of its
   * own, which stays in it until they are over. */
  ob_status (*communicator_joined)(ob_communicator communicator);
  /* ---- optional, both or neither, since minor version 10: functions that the vendor's compiler makes of graphs ----
   */
  /* A function from the bytes of an executable, read during the call only. `library_call` runs it with the graph's
   * inputs as operands, then its results, which share no memory with the inputs. If its maker asked for scratch memory,
   * one more result comes last: so many bytes (dtype 0). What its maker wanted in a layout of its own is an operand of
   * the sizes that it has there. OB_BUILD_FAILED: the bytes are damaged, or another version's; a driver tells that from
   * the bytes alone.
   * Integers are those of PyTorch: of as many bits as their dtype has, exact, and they wrap around. An executable reads
   * and writes nothing outside of its operands: a value that PyTorch refuses fails the call, or the queued work, with
   * OB_INDEX_ERROR if it is an index outside of its dimension, else, such as integers divided by 0, with
   * OB_VALUE_ERROR. The device stays usable. */
  ob_status (*function_load)(ob_device device, const void* bytes, size_t size, ob_function* function /* out */);
  /* Only of what `function_load` gave. Queued work may still use it: the driver defers it, as of programs. */
  ob_status (*function_release)(ob_function function);
  /* ---- optional, since minor version 11: a device as new ---- */
  /* Gives up the device, lost or not, and opens it again as `fresh`, which `device_open` returns from now on. Once for
   * each handle. When it returns OB_OK, queued work has ended or is left out, and nothing of it reads or writes memory
   * any more; the allocations are freed, but not what `host_alloc` gave. `device` is lost then, for ever: calls of
   * other threads that were waiting return. If it fails, the device is lost all the same, and another reset may be
   * tried. */
  ob_status (*device_reset)(ob_device device, ob_device* fresh /* out */);
  /* ---- optional, since minor version 11: sensors ---- */
  /* What they say now, without waiting for work. Fields that the device has no sensor for are left alone. */
  ob_status (*device_sensors)(ob_device device, ob_sensors* sensors /* out */);
} ob_driver;

/* The one exported symbol of a driver library. */
typedef const ob_driver* (*ob_driver_entry)(void);
#define OB_DRIVER_ENTRY_NAME "outboard_driver"

#ifdef __cplusplus
}
#endif

#endif /* OUTBOARD_DRIVER_H_ */
