/* Programs: built from source, loaded from binaries, and launched. Here the compiler is `c++` of the system. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "chip.h"

struct ob_program_t {
  void* library; /* of dlopen */
  char* binary;
  size_t bytes;
};

void describe_code(ob_device_properties* properties) {
  strcpy(properties->dialect, "mychip");     /* dialect.py */
  properties->execution = OB_EXECUTION_SIMT; /* many short work-items */
  properties->max_work_group_size = 1;       /* of a group's work-items, which may wait for one another: here none */
  properties->sub_group_size = 1;
  properties->local_memory = 32 << 10;
  properties->has_fp64 = 1;
  properties->has_int64_atomics = 1;
}

/* Reads a file to memory of malloc, with a zero behind it; NULL if that fails. */
static char* read_file(const char* path, size_t* bytes) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) return NULL;
  fseek(file, 0, SEEK_END);
  *bytes = (size_t)ftell(file);
  rewind(file);
  char* content = (char*)malloc(*bytes + 1);
  if (content != NULL) content[fread(content, 1, *bytes, file)] = 0;
  fclose(file);
  return content;
}

static int write_file(const char* path, const void* content, size_t bytes) {
  FILE* file = fopen(path, "wb");
  if (file == NULL) return 0;
  const size_t written = fwrite(content, 1, bytes, file);
  return fclose(file) == 0 && written == bytes;
}

/* A program from machine code in a file, which is read and may then go. */
static ob_status load_library(const char* path, ob_program* program) {
  ob_program made = (ob_program)calloc(1, sizeof(struct ob_program_t));
  if (made == NULL) return fail(OB_OUT_OF_MEMORY, "no memory is left");
  made->binary = read_file(path, &made->bytes);
  made->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (made->binary != NULL && made->library != NULL) return *program = made, OB_OK;
  const char* why = made->library == NULL ? dlerror() : "no memory is left";
  free(made->binary);
  free(made);
  return fail(OB_BUILD_FAILED, why);
}

/* Each kernel gets a function beside it that a launch can call: C++ knows the types of its parameters. A chip's
 * compiler knows them as well, and needs no such thing. */
static int add_launchers(const char* path) {
  size_t bytes = 0;
  char* text = read_file(path, &bytes);
  FILE* file = text != NULL ? fopen(path, "ab") : NULL;
  const char* const mark = "[[mychip::kernel]]"; /* OB_KERNEL */
  for (const char* at = file != NULL ? strstr(text, mark) : NULL; at != NULL; at = strstr(at, mark)) {
    at = strstr(at, "void ");
    if (at == NULL) break;
    at += strlen("void ");
    const int length = (int)strcspn(at, "( ");
    fprintf(file, "\nextern \"C\" int launch_%.*s(void** values, unsigned count, const unsigned long* groups) {",
            length, at);
    fprintf(file, " return mychip_launch(::%.*s, values, count, groups); }\n", length, at);
  }
  free(text);
  return file != NULL && fclose(file) == 0;
}

/* The compiler: here `c++` of the system. */
static ob_status compile(const char* folder, const char* source, ob_program* program) {
  char text[64], whole[64], library[64], log[64], command[512];
  snprintf(text, sizeof(text), "%s/text.cpp", folder);
  snprintf(whole, sizeof(whole), "%s/whole.cpp", folder);
  snprintf(library, sizeof(library), "%s/program.so", folder);
  snprintf(log, sizeof(log), "%s/log", folder);
  ob_status status = write_file(text, source, strlen(source)) ? OB_OK : fail(OB_INTERNAL, "no room for a program");
  snprintf(command, sizeof(command), "c++ -std=c++20 -E %s -o %s 2> %s", text, whole, log);
  if (status == OB_OK && (system(command) != 0 || !add_launchers(whole))) status = OB_BUILD_FAILED;
  snprintf(command, sizeof(command),
           "c++ -std=c++20 -O2 -march=native -ffp-contract=off -w -shared -fPIC %s -o %s 2> %s", whole, library, log);
  if (status == OB_OK && system(command) != 0) status = OB_BUILD_FAILED;
  if (status == OB_BUILD_FAILED) {
    size_t bytes = 0;
    char* said = read_file(log, &bytes);
    fail(status, said != NULL && bytes != 0 ? said : "the compiler failed");
    free(said);
  }
  if (status == OB_OK) status = load_library(library, program);
  unlink(text), unlink(whole), unlink(library), unlink(log);
  return status;
}

ob_status program_build(ob_device device, const char* source, const char* options, ob_program* program) {
  (void)device, (void)options;
  char folder[] = "/tmp/mychip-XXXXXX";
  if (mkdtemp(folder) == NULL) return fail(OB_INTERNAL, "there is no place for temporary files");
  const ob_status status = compile(folder, source, program);
  rmdir(folder);
  return status;
}

ob_status program_load(ob_device device, const void* binary, size_t bytes, ob_program* program) {
  (void)device;
  char path[] = "/tmp/mychip-XXXXXX";
  const int file = mkstemp(path);
  if (file < 0) return fail(OB_INTERNAL, "there is no place for temporary files");
  close(file);
  const ob_status status =
      write_file(path, binary, bytes) ? load_library(path, program) : fail(OB_INTERNAL, "no room for a program");
  unlink(path);
  return status;
}

ob_status program_binary(ob_program program, void* binary, size_t* bytes) {
  if (binary != NULL) memcpy(binary, program->binary, program->bytes);
  *bytes = program->bytes;
  return OB_OK;
}

ob_status program_release(ob_program program) {
  dlclose(program->library);
  free(program->binary);
  free(program);
  return OB_OK;
}

ob_status kernel_get(ob_program program, const char* name, ob_kernel* kernel) {
  char symbol[256];
  snprintf(symbol, sizeof(symbol), "launch_%s", name);
  *kernel = (ob_kernel)dlsym(program->library, symbol);
  return *kernel != NULL ? OB_OK : fail(OB_INVALID_ARGUMENT, "the program has no kernel of that name");
}

ob_status launch(ob_stream stream, ob_kernel kernel, const uint64_t global[3], const uint32_t local[3],
                 const ob_argument* arguments, uint32_t argument_count) {
  (void)stream, (void)local; /* groups of one work-item: as many groups as work-items */
  void* values[128];
  if (argument_count > 128) return fail(OB_INVALID_ARGUMENT, "a kernel has at most 128 arguments");
  for (uint32_t i = 0; i < argument_count; ++i) values[i] = (void*)arguments[i].value;
  const int launched = ((int (*)(void**, uint32_t, const uint64_t*))kernel)(values, argument_count, global);
  return launched ? OB_OK : fail(OB_INVALID_ARGUMENT, "the kernel has another number of arguments");
}
