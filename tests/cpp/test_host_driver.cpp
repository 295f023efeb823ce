// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "outboard/driver.h"

/// The host driver by itself: what it compiles, how work-items take turns, what it refuses.
namespace {

constexpr uint32_t kSubGroup = 8;

const ob_driver& driver() {
  static const ob_driver* const table = [] {
    setenv("OUTBOARD_HOST_SUB_GROUP", std::to_string(kSubGroup).c_str(), 1);
    void* const library = dlopen(OUTBOARD_HOST, RTLD_NOW);
    if (library == nullptr) throw std::runtime_error(dlerror());
    return reinterpret_cast<ob_driver_entry>(dlsym(library, OB_DRIVER_ENTRY_NAME))();
  }();
  return *table;
}

void succeed(ob_status status) {
  if (status != OB_OK) throw std::runtime_error(driver().last_error());
}

ob_device device() {
  ob_device handle = nullptr;
  uint32_t count = 0;
  succeed(driver().device_count(&count));
  if (count == 0) throw std::runtime_error(driver().last_error());
  succeed(driver().device_open(0, &handle));
  return handle;
}

class Program {
 public:
  explicit Program(const std::string& source, const char* options = "-cl-std=CL3.0") {
    succeed(driver().program_build(device(), source.c_str(), options, &handle_));
  }
  explicit Program(ob_program handle) : handle_(handle) {}
  ~Program() { driver().program_release(handle_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  ob_kernel kernel(const char* name = "k") const {
    ob_kernel found = nullptr;
    succeed(driver().kernel_get(handle_, name, &found));
    return found;
  }

  std::string binary() const {
    size_t bytes = 0;
    succeed(driver().program_binary(handle_, nullptr, &bytes));
    std::string content(bytes, '\0');
    succeed(driver().program_binary(handle_, content.data(), &bytes));
    return content;
  }

 private:
  ob_program handle_ = nullptr;
};

class Stream {
 public:
  Stream() { succeed(driver().stream_create(device(), &handle_)); }
  ~Stream() { driver().stream_destroy(handle_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// With a pointer to the host's memory as the only argument: that is the device's.
  ob_status launch(ob_kernel kernel, void* memory, uint64_t items, uint32_t local) const {
    const auto pointer = reinterpret_cast<ob_ptr>(memory);
    const ob_argument argument{1, 8, &pointer};
    const uint64_t global[3] = {items, 1, 1};
    const uint32_t sizes[3] = {local, 1, 1};
    return driver().launch(handle_, kernel, global, sizes, &argument, 1);
  }

  ob_stream handle() const { return handle_; }

 private:
  ob_stream handle_ = nullptr;
};

std::string build_error(const std::string& source, const char* options = "") {
  ob_program program = nullptr;
  CHECK_EQ(driver().program_build(device(), source.c_str(), options, &program), OB_BUILD_FAILED);
  return driver().last_error();
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST(work_items_meet_at_barriers) {
  const Program program(
      "__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void k(__global int* x) {"
      "  __local int sums[64]; __local int seen;"
      "  int i = get_local_id(0);"
      "  if (i == 0) seen = 100 * get_group_id(0);"
      "  sums[i] = x[get_global_id(0)];"
      "  for (int step = 1; step < 64; step *= 2) {"
      "    barrier(CLK_LOCAL_MEM_FENCE);"
      "    int other = i >= step ? sums[i - step] : 0;"
      "    barrier(CLK_LOCAL_MEM_FENCE);"
      "    sums[i] += other;"
      "  }"
      "  barrier(CLK_LOCAL_MEM_FENCE);"
      "  x[get_global_id(0)] = sums[i] + seen; }");
  constexpr int kGroups = 300;
  std::vector<int> x(64 * kGroups, 1);
  Stream stream;
  succeed(stream.launch(program.kernel(), x.data(), x.size(), 64));
  for (int i = 0; i < 64 * kGroups; ++i) CHECK_EQ(x[i], i % 64 + 1 + i / 64 * 100);
  ob_kernel_properties needs{};
  needs.struct_size = sizeof(needs);
  succeed(driver().kernel_properties(program.kernel(), &needs));
  CHECK_EQ(needs.local_memory, 65 * sizeof(int));
}

TEST(items_that_return_early_keep_nobody_waiting) {
  const Program program(
      "__kernel void k(__global int* x) {"
      "  __local int shared; int i = get_local_id(0);"
      "  if (i >= 5) return;"
      "  if (i == 0) shared = 7;"
      "  barrier(CLK_LOCAL_MEM_FENCE);"
      "  x[get_global_id(0)] = shared; }");
  std::vector<int> x(32, 0);
  Stream stream;
  succeed(stream.launch(program.kernel(), x.data(), x.size(), 16));
  for (int i = 0; i < 32; ++i) CHECK_EQ(x[i], i % 16 < 5 ? 7 : 0);
}

TEST(sub_groups_shuffle) {
  const Program program(
      "__kernel void k(__global float* x) {"
      "  float v = x[get_global_id(0)];"
      "  for (uint step = get_sub_group_size() / 2; step > 0; step /= 2)"
      "    v += sub_group_shuffle(v, get_sub_group_local_id() ^ step);"
      "  x[get_global_id(0)] = v + 1000 * get_sub_group_id() + 10000 * get_num_sub_groups(); }");
  std::vector<float> x(64);
  std::iota(x.begin(), x.end(), 0.0f);
  Stream stream;
  succeed(stream.launch(program.kernel(), x.data(), x.size(), 32));
  for (uint32_t i = 0; i < 64; ++i) {
    const uint32_t first = i / kSubGroup * kSubGroup;
    const float sum = static_cast<float>(first * kSubGroup + kSubGroup * (kSubGroup - 1) / 2);
    CHECK_EQ(x[i], sum + 1000.0f * static_cast<float>(i % 32 / kSubGroup) + 40000.0f);
  }
}

TEST(three_dimensions_of_work_items_and_groups) {
  const Program program(
      "__kernel void k(__global int* x) {"
      "  size_t i = (get_global_id(2) * get_global_size(1) + get_global_id(1)) * get_global_size(0) + get_global_id(0);"
      "  barrier(CLK_GLOBAL_MEM_FENCE);"
      "  x[i] = get_local_id(0) + 10 * get_local_id(1) + 100 * get_local_id(2) + 1000 * get_group_id(0)"
      "       + 10000 * get_group_id(1) + 100000 * get_group_id(2); }");
  std::vector<int> x(size_t{6} * 4 * 4);
  const auto pointer = reinterpret_cast<ob_ptr>(x.data());
  const ob_argument argument{1, 8, &pointer};
  const uint64_t global[3] = {6, 4, 4};
  const uint32_t local[3] = {3, 2, 2};
  Stream stream;
  succeed(driver().launch(stream.handle(), program.kernel(), global, local, &argument, 1));
  for (int z = 0; z < 4; ++z) {
    for (int y = 0; y < 4; ++y) {
      for (int i = 0; i < 6; ++i) {
        CHECK_EQ(x[(z * 4 + y) * 6 + i],
                 i % 3 + 10 * (y % 2) + 100 * (z % 2) + 1000 * (i / 3) + 10000 * (y / 2) + 100000 * (z / 2));
      }
    }
  }
}

TEST(threads_launch_at_the_same_time) {
  const Program program(
      "__kernel void k(__global int* x) {"
      "  __local int shared[16]; int i = get_local_id(0);"
      "  shared[i] = x[get_global_id(0)];"
      "  barrier(CLK_LOCAL_MEM_FENCE);"
      "  x[get_global_id(0)] = shared[15 - i]; }");
  std::vector<std::vector<int>> all(4, std::vector<int>(16 * 200));
  std::vector<std::thread> threads;
  for (std::vector<int>& x : all) {
    std::iota(x.begin(), x.end(), 0);
    threads.emplace_back([&] {
      Stream stream;
      for (int i = 0; i < 21; ++i) stream.launch(program.kernel(), x.data(), x.size(), 16);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<int>& x : all) {
    for (int i = 0; i < static_cast<int>(x.size()); ++i) CHECK_EQ(x[i], i / 16 * 16 + 15 - i % 16);
  }
}

TEST(values_of_all_kinds_are_arguments) {
  const Program program(
      "__kernel void k(__global double* x, char a, ushort b, int c, ulong d, float e, double f, float4 g) {"
      "  x[0] = a; x[1] = b; x[2] = c; x[3] = d; x[4] = e; x[5] = f; x[6] = g.x + g.w; }");
  std::vector<double> x(7);
  const auto pointer = reinterpret_cast<ob_ptr>(x.data());
  const int8_t a = -3;
  const uint16_t b = 65535;
  const int32_t c = -70000;
  const uint64_t d = uint64_t{1} << 40;
  const float e = 0.5f, g[4] = {1, 2, 3, 4};
  const double f = 0.1;
  const ob_argument arguments[8] = {{1, 8, &pointer}, {0, 1, &a}, {0, 2, &b}, {0, 4, &c},
                                    {0, 8, &d},       {0, 4, &e}, {0, 8, &f}, {0, 16, g}};
  const uint64_t global[3] = {1, 1, 1};
  const uint32_t local[3] = {1, 1, 1};
  Stream stream;
  succeed(driver().launch(stream.handle(), program.kernel(), global, local, arguments, 8));
  const std::vector<double> expected = {-3, 65535, -70000, static_cast<double>(d), 0.5, 0.1, 5};
  for (size_t i = 0; i < x.size(); ++i) CHECK_EQ(x[i], expected[i]);
  // Another number of arguments, another size, a number for a pointer.
  CHECK_EQ(driver().launch(stream.handle(), program.kernel(), global, local, arguments, 7), OB_INVALID_ARGUMENT);
  ob_argument wrong[8];
  std::copy(arguments, arguments + 8, wrong);
  wrong[3].size = 8;
  CHECK_EQ(driver().launch(stream.handle(), program.kernel(), global, local, wrong, 8), OB_INVALID_ARGUMENT);
  CHECK(contains(driver().last_error(), "argument 3"));
  wrong[3] = arguments[3];
  wrong[0] = {0, 8, &pointer};
  CHECK_EQ(driver().launch(stream.handle(), program.kernel(), global, local, wrong, 8), OB_INVALID_ARGUMENT);
}

TEST(conversions_saturate_and_round) {
  const Program program(
      "__kernel void k(__global int* x) {"
      "  x[0] = convert_char_sat(300.0f); x[1] = convert_uchar_sat(-5); x[2] = convert_int_rte(2.5f);"
      "  x[3] = convert_int_rtp(2.1f); x[4] = convert_int_sat(3e9f); x[5] = convert_int_sat(NAN);"
      "  int4 v = convert_int4_rtn((float4)(-1.5f, 1.5f, -0.5f, 2.0f)); x[6] = v.x; x[7] = v.y; x[8] = v.z;"
      "  x[9] = as_int(1.0f); x[10] = as_uchar4(0x01020304).w; x[11] = mul_hi(0x40000000, 8);"
      "  x[12] = popcount(0xff); x[13] = clz(1); x[14] = rotate(0x80000001u, 1u);"
      "  x[15] = convert_uint_sat(-1L) + select(1, 2, 0) + any((int2)(0, -1)); }");
  std::vector<int> x(16);
  Stream stream;
  succeed(stream.launch(program.kernel(), x.data(), 1, 1));
  const std::vector<int> expected = {127, 0, 2, 3, INT32_MAX, 0, -2, 1, -1, 0x3f800000, 1, 2, 8, 31, 3, 2};
  for (size_t i = 0; i < x.size(); ++i) CHECK_EQ(x[i], expected[i]);
}

/// Every half is a float, and comes back; floats between two halves go to the even one.
TEST(halves_in_memory) {
  const Program program(
      "__kernel void k(__global ushort* x) {"
      "  size_t i = get_global_id(0);"
      "  float v = vload_half(i, (__global half*)x);"
      "  vstore_half(v, i, (__global half*)x);"
      "  if (i == 65535) vstore_half4((float4)(2049.0f, 2051.0f, 65520.0f, 0x1p-25f), 0, (__global half*)x); }");
  std::vector<uint16_t> x(65536);
  std::iota(x.begin(), x.end(), static_cast<uint16_t>(0));
  Stream stream;
  succeed(stream.launch(program.kernel(), x.data(), x.size(), 1));
  const uint16_t rounded[4] = {0x6800, 0x6802, 0x7c00, 0};
  for (int i = 0; i < 4; ++i) CHECK_EQ(x[i], rounded[i]);
  for (int i = 4; i < 65536; ++i) {
    const bool is_nan = (i & 0x7c00) == 0x7c00 && (i & 0x3ff) != 0;
    CHECK_EQ(is_nan ? x[i] | 0x200 : x[i], is_nan ? i | 0x200 : i);
  }
}

TEST(atomics_of_all_threads_count) {
  const Program program(
      "__kernel void k(__global long* x) { atom_add(&x[0], 1L); atomic_max((__global int*)&x[1], "
      "(int)get_global_id(0)); }");
  std::vector<int64_t> x(2, 0);
  Stream stream;
  for (int i = 0; i < 3; ++i) succeed(stream.launch(program.kernel(), x.data(), 100000, 1));
  CHECK_EQ(x[0], 300000);
  CHECK_EQ(x[1], 99999);
}

TEST(functions_are_the_C_librarys) {
  const Program program(
      "__kernel void k(__global float* x) {"
      "  float8 v = vload8(0, x); float8 y = pow(v, (float8)1.5f) + tgamma(v) * fmod(v, 2.0f) - erf(v);"
      "  vstore8(y, 0, x); x[8] = lgamma(x[8]); x[9] = fma(x[9], x[9], -x[9]); }");
  std::vector<float> x = {0.5f, 1, 1.5f, 2, 2.5f, 3, 3.5f, 4, 2.5f, 1.25f}, y(10);
  for (int i = 0; i < 8; ++i) {
    y[i] = std::pow(x[i], 1.5f) + std::tgamma(x[i]) * std::fmod(x[i], 2.0f) - std::erf(x[i]);
  }
  y[8] = std::lgamma(x[8]);
  y[9] = std::fma(x[9], x[9], -x[9]);
  Stream stream;
  succeed(stream.launch(program.kernel(), x.data(), 1, 1));
  for (int i = 0; i < 10; ++i) CHECK(std::abs(x[i] - y[i]) <= 4e-7f * std::abs(y[i]));
}

TEST(a_program_that_the_compiler_refuses) {
  CHECK(contains(build_error("__kernel void k(__global float* x) {\n  x[0] = nonsense; }"), "program:2:"));
  CHECK(contains(build_error("__kernel void k(__global float* x) { x[0] = unknown_function(x[0]); }"),
                 "unknown_function"));
  CHECK(contains(build_error("__kernel void k(__local float* x) { x[0] = 1; }"), "argument 0"));
  CHECK(contains(build_error("__kernel void k() {}", "-o /tmp/file"), "-o"));
  CHECK(contains(build_error("__kernel void k() {}", "-fplugin=/tmp/plugin.so"), "-fplugin"));
}

TEST(definitions_among_the_options) {
  const Program program("__kernel void k(__global int* x) { x[0] = N + M; }", "-cl-std=CL3.0 -D N=40 -DM=2");
  int x = 0;
  Stream stream;
  succeed(stream.launch(program.kernel(), &x, 1, 1));
  CHECK_EQ(x, 42);
}

TEST(launches_that_do_not_fit) {
  const Program program(
      "__kernel __attribute__((reqd_work_group_size(8, 1, 1))) void k(__global int* x) { x[0] = 1; }");
  int x[64] = {};
  Stream stream;
  CHECK_EQ(stream.launch(program.kernel(), x, 64, 4), OB_INVALID_ARGUMENT);
  CHECK_EQ(stream.launch(program.kernel(), x, 60, 8), OB_INVALID_ARGUMENT);
  CHECK_EQ(x[0], 0);
  CHECK_EQ(stream.launch(program.kernel(), x, 64, 0), OB_OK);
  CHECK_EQ(x[0], 1);
  CHECK_EQ(stream.launch(Program("__kernel void k(__global int* x) {}").kernel(), x, 4096, 2048), OB_INVALID_ARGUMENT);
}

/// A binary is what it was, or is refused: wherever one byte of it differs, and wherever it ends too soon.
TEST(damaged_binaries_are_refused) {
  const std::string binary = Program("__kernel void k(__global int* x) { x[get_global_id(0)] = 5; }").binary();
  ob_program loaded = nullptr;
  succeed(driver().program_load(device(), binary.data(), binary.size(), &loaded));
  const Program again(loaded);
  CHECK(again.binary() == binary);
  std::vector<int> x(10);
  Stream stream;
  succeed(stream.launch(again.kernel(), x.data(), x.size(), 1));
  CHECK_EQ(std::accumulate(x.begin(), x.end(), 0), 50);
  ob_program refused = nullptr;
  for (size_t at = 0; at < binary.size(); ++at) {
    std::string damaged = binary;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    CHECK_EQ(driver().program_load(device(), damaged.data(), damaged.size(), &refused), OB_INVALID_ARGUMENT);
    CHECK_EQ(driver().program_load(device(), binary.data(), at, &refused), OB_INVALID_ARGUMENT);
  }
}

}  // namespace

int main() { return check::run_all(); }
