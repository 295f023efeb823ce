/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs models written by `outboard.export` in Python, without Python and without PyTorch.
 *
 *   ob_runner_start(NULL, 0);
 *   ob_model model;
 *   ob_model_open("model.obm", NULL, &model);
 *   ob_array x = {"x", OB_FLOAT32, 2, sizes, data, bytes};
 *   ob_results results;
 *   ob_model_run(model, &x, 1, &results);
 *   ob_results_array(results, 0, &y);
 *
 * Every call returns an `ob_status` (see driver.h). After one other than OB_OK, `ob_runner_error` gives the text for
 * the calling thread, valid until that thread's next call. Any function may be called from any thread; one model may be
 * run by several at once. No exception crosses this interface.
 */
#ifndef OUTBOARD_RUNNER_H_
#define OUTBOARD_RUNNER_H_

#include "outboard/driver.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OB_RUNNER_API __attribute__((visibility("default")))

/* Element types, numbered as in PyTorch (c10::ScalarType). Half precision and complex numbers lie as they do there. */
typedef enum ob_dtype {
  OB_UINT8 = 0,
  OB_INT8 = 1,
  OB_INT16 = 2,
  OB_INT32 = 3,
  OB_INT64 = 4,
  OB_FLOAT16 = 5,
  OB_FLOAT32 = 6,
  OB_FLOAT64 = 7,
  OB_COMPLEX32 = 8,
  OB_COMPLEX64 = 9,
  OB_COMPLEX128 = 10,
  OB_BOOL = 11,
  OB_BFLOAT16 = 15,
  OB_FLOAT8_E5M2 = 23,
  OB_FLOAT8_E4M3FN = 24,
  OB_UINT16 = 27,
  OB_UINT32 = 28,
  OB_UINT64 = 29
} ob_dtype;

typedef struct ob_model_t* ob_model;
typedef struct ob_results_t* ob_results;

/* What a model takes or returns. The strings and arrays live as long as the model. */
typedef struct ob_array_info {
  const char* name;
  ob_dtype dtype;
  uint32_t rank;
  const int64_t* least; /* smallest size in each dimension */
  const int64_t* most;  /* largest; INT64_MAX where there is no bound */
} ob_array_info;

/* A dense, row-major array in host memory. */
typedef struct ob_array {
  const char* name;
  ob_dtype dtype;
  uint32_t rank;
  const int64_t* sizes;
  const void* data;
  uint64_t bytes; /* of data: the product of the sizes and the size of an element */
} ob_array;

/* The text of the calling thread's last failure. */
OB_RUNNER_API const char* ob_runner_error(void);

/* Opens the devices of driver libraries, given by path; the first call of a process decides. With count 0: what the
 * environment variable OUTBOARD_DRIVER names (paths, separated by commas), else the OpenCL driver that is installed
 * with this library. Compiled programs are kept in OUTBOARD_CACHE_DIR, if that is set.
 * OB_UNSUPPORTED if there is no device. */
OB_RUNNER_API ob_status ob_runner_start(const char* const* drivers, uint32_t count);

/* Reads a model, builds its programs and moves its weights to a device.
 *   weights: the safetensors file to use in place of the one that the model refers to, or NULL
 *   device: index of the device, from 0
 * OB_INVALID_ARGUMENT: the file, or the weights, are missing, damaged or of another kind or version.
 * OB_UNSUPPORTED: the device cannot run it. OB_BUILD_FAILED: the device's compiler refuses a program. */
OB_RUNNER_API ob_status ob_model_open(const char* path, const char* weights, uint32_t device,
                                      ob_model* model /* out */);
OB_RUNNER_API void ob_model_close(ob_model model);

OB_RUNNER_API uint32_t ob_model_input_count(ob_model model);
OB_RUNNER_API uint32_t ob_model_output_count(ob_model model);
/* OB_INVALID_ARGUMENT if there is no such input or output. */
OB_RUNNER_API ob_status ob_model_input(ob_model model, uint32_t number, ob_array_info* info /* out */);
OB_RUNNER_API ob_status ob_model_output(ob_model model, uint32_t number, ob_array_info* info /* out */);

/* Runs the model and waits for the results. Inputs are found by name, in any order; each must be there once.
 * OB_INVALID_ARGUMENT: an input is missing, unknown, or of another dtype or shape than the model takes. */
OB_RUNNER_API ob_status ob_model_run(ob_model model, const ob_array* inputs, uint32_t count,
                                     ob_results* results /* out */);

/* Output `number` of the model, valid until the results are released. An integer is an array of rank 0. */
OB_RUNNER_API ob_status ob_results_array(ob_results results, uint32_t number, ob_array* array /* out */);
OB_RUNNER_API void ob_results_release(ob_results results);

#ifdef __cplusplus
}
#endif

#endif /* OUTBOARD_RUNNER_H_ */
