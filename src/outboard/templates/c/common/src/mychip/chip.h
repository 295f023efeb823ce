/* What the files of the driver share. */
#pragma once

#include "outboard/driver.h"

#ifdef __cplusplus
extern "C" {
#else
#define thread_local _Thread_local
#endif

const ob_driver* outboard_driver(void);

#ifdef __cplusplus
}
#endif

/* Keeps the text for `last_error`, and returns the status. */
ob_status fail(ob_status status, const char* text);
/* What the device says of the code that it runs. */
void describe_code(ob_device_properties* properties);

ob_status program_build(ob_device device, const char* source, const char* options, ob_program* program);
ob_status program_load(ob_device device, const void* binary, size_t bytes, ob_program* program);
ob_status program_binary(ob_program program, void* binary, size_t* bytes);
ob_status program_release(ob_program program);
ob_status kernel_get(ob_program program, const char* name, ob_kernel* kernel);
ob_status launch(ob_stream stream, ob_kernel kernel, const uint64_t global[3], const uint32_t local[3],
                 const ob_argument* arguments, uint32_t argument_count);

/* The host's address of device memory. */
static inline void* host(ob_ptr ptr) { return (void*)(uintptr_t)ptr; }

#include "CODE_OF_KIND.h"
