/* Executables: what compiler.py makes of a graph. A line says what the chip does, on operands of a call (o0, o1, ...)
 * and on places in the call's scratch memory (s0, s64, ...), all of them dense numbers of 32 bits:
 *
 *   mychip 1 CHECKSUM
 *   add s0 o0 o1 12
 *   relu o2 s0 - 12
 *   mm o3 o2 o4 3 4 5
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chip.h"

struct ob_function_t {
  char* text; /* without the first line */
};

void describe_code(ob_device_properties* properties) {
  strcpy(properties->compiler, "mychip-cc 1"); /* name and version of compiler.py */
  properties->static_sizes = 1;                /* each executable is for one set of sizes */
  properties->max_work_group_size = properties->sub_group_size = 1;
}

/* FNV-1a. */
static uint64_t checksum(const char* text) {
  uint64_t sum = 0xcbf29ce484222325ull;
  for (; *text != 0; ++text) sum = (sum ^ (unsigned char)*text) * 0x100000001b3ull;
  return sum;
}

ob_status function_load(ob_device device, const void* bytes, size_t size, ob_function* function) {
  (void)device;
  char* text = (char*)calloc(1, size + 1);
  if (text == NULL) return fail(OB_OUT_OF_MEMORY, "no memory is left");
  memcpy(text, bytes, size);
  unsigned long long sum = 0;
  int head = 0;
  if (strlen(text) != size || sscanf(text, "mychip 1 %16llx\n%n", &sum, &head) != 1 || head == 0 ||
      checksum(text + head) != sum) {
    free(text);
    return fail(OB_BUILD_FAILED, "this is no executable of mychip 1, or it is damaged");
  }
  ob_function made = (ob_function)calloc(1, sizeof(struct ob_function_t));
  memmove(text, text + head, size + 1 - (size_t)head);
  if (made == NULL) return free(text), fail(OB_OUT_OF_MEMORY, "no memory is left");
  made->text = text;
  *function = made;
  return OB_OK;
}

ob_status function_release(ob_function function) {
  free(function->text);
  free(function);
  return OB_OK;
}

/* Where "o3" or "s64" is; NULL for "-". The last operand is the scratch memory, if the compiler asked for some. */
static float* place(const char* name, const ob_operand* operands, uint32_t count) {
  const unsigned long number = strtoul(name + 1, NULL, 10);
  if (name[0] == 'o' && number < count) return (float*)host(operands[number].data);
  return name[0] == 's' ? (float*)host(operands[count - 1].data + number) : NULL;
}

static void multiply_matrices(float* to, const float* a, const float* b, const long* sizes) {
  for (long i = 0; i < sizes[0]; ++i) {
    for (long j = 0; j < sizes[2]; ++j) {
      float sum = 0;
      for (long k = 0; k < sizes[1]; ++k) sum += a[i * sizes[1] + k] * b[k * sizes[2] + j];
      to[i * sizes[2] + j] = sum;
    }
  }
}

static int run_line(const char* line, const ob_operand* operands, uint32_t count) {
  char name[16], to_name[32], a_name[32], b_name[32];
  long sizes[3] = {0, 0, 0};
  if (sscanf(line, "%15s %31s %31s %31s %ld %ld %ld", name, to_name, a_name, b_name, &sizes[0], &sizes[1], &sizes[2]) <
      5) {
    return 0;
  }
  float* const to = place(to_name, operands, count);
  const float* const a = place(a_name, operands, count);
  const float* const b = place(b_name, operands, count);
  if (strcmp(name, "mm") == 0) return multiply_matrices(to, a, b, sizes), 1;
  for (long i = 0; i < sizes[0]; ++i) {
    if (strcmp(name, "add") == 0) {
      to[i] = a[i] + b[i];
    } else if (strcmp(name, "mul") == 0) {
      to[i] = a[i] * b[i];
    } else if (strcmp(name, "relu") == 0) {
      to[i] = a[i] < 0 ? 0 : a[i]; /* NaN stays */
    } else if (strcmp(name, "sigmoid") == 0) {
      to[i] = 1 / (1 + expf(-a[i]));
    } else {
      return 0;
    }
  }
  return 1;
}

ob_status library_call(ob_stream stream, ob_function function, const ob_operand* operands, uint32_t count) {
  (void)stream;
  for (const char* line = function->text; *line != 0; line = strchr(line, '\n') + 1) {
    if (!run_line(line, operands, count))
      return fail(OB_INTERNAL, "an executable has a line that mychip does not know");
    if (strchr(line, '\n') == NULL) break;
  }
  return OB_OK;
}

/* The chip has no functions but those that are loaded, and no programs. */
ob_status library_find(ob_device device, const char* name, const ob_operand* operands, uint32_t count,
                       ob_function* function) {
  (void)device, (void)name, (void)operands, (void)count, (void)function;
  return fail(OB_UNSUPPORTED, "mychip has no library");
}
ob_status program_build(ob_device device, const char* source, const char* options, ob_program* program) {
  (void)device, (void)source, (void)options, (void)program;
  return fail(OB_UNSUPPORTED, "mychip has no kernels");
}
ob_status program_load(ob_device device, const void* binary, size_t bytes, ob_program* program) {
  (void)device, (void)binary, (void)bytes, (void)program;
  return fail(OB_UNSUPPORTED, "mychip has no kernels");
}
ob_status program_binary(ob_program program, void* binary, size_t* bytes) {
  (void)program, (void)binary, (void)bytes;
  return fail(OB_UNSUPPORTED, "mychip has no kernels");
}
ob_status program_release(ob_program program) { return (void)program, OB_OK; }
ob_status kernel_get(ob_program program, const char* name, ob_kernel* kernel) {
  (void)program, (void)name, (void)kernel;
  return fail(OB_UNSUPPORTED, "mychip has no kernels");
}
ob_status launch(ob_stream stream, ob_kernel kernel, const uint64_t global[3], const uint32_t local[3],
                 const ob_argument* arguments, uint32_t argument_count) {
  (void)stream, (void)kernel, (void)global, (void)local, (void)arguments, (void)argument_count;
  return fail(OB_UNSUPPORTED, "mychip has no kernels");
}
