// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "check.h"
#include "fixture.h"
#include "outboard/driver.h"
#include "plan_writer.h"
#include "runtime/base/driver_call.h"
#include "runtime/base/error.h"
#include "runtime/device.h"
#include "runtime/memory/allocation.h"
#include "runtime/plans/executor.h"
#include "runtime/streams/graph.h"

/// The runtime on real OpenCL devices, with failures injected between it and the driver.
/// Arguments come from CMake: OUTBOARD_TEST_DRIVER is the fault-injecting driver's path.
using namespace outboard;
using fixture::device;
using fixture::download;

namespace {

/// Runs y = a x + 1 and returns y.
std::vector<float> scale(size_t count, double a) {
  Stream& stream = device().default_stream();
  const std::string bytes = scale_plan();
  const Executable executable(Plan::parse(bytes.data(), bytes.size()), device());
  std::vector<float> host(count);
  for (size_t i = 0; i < count; ++i) host[i] = static_cast<float>(i);
  Allocation* x = Allocation::create(device(), count * 4);
  struct Guard {
    Allocation* allocation;
    ~Guard() { allocation->release(); }
  } guard{x};
  stream.copy(OB_HOST_TO_DEVICE, Pin(*x, stream).pointer(), reinterpret_cast<uint64_t>(host.data()), count * 4);
  const int64_t size = static_cast<int64_t>(count), stride = 1;
  Input inputs[2];
  inputs[0].tensor = {x, DType::kFloat32, 1, &size, &stride, 0};
  inputs[1].scalar.d = a;
  std::vector<Scalar> symbols;
  if (!executable.bind(inputs, symbols)) throw std::runtime_error("guards do not hold");
  ExecutionContext context{stream, {}};
  std::vector<Result> results;
  executable.run(inputs, symbols, context, results);
  Guard result{results.at(0).allocation};
  return download(*result.allocation, count);
}

}  // namespace

TEST(functions_that_an_older_driver_does_not_know_are_absent) {
  const auto behind = reinterpret_cast<decltype(ob_driver::host_alloc)>(0x1);
  ob_driver older{};
  older.name = "older";
  older.host_alloc = behind;  // memory behind the end of its table
  older.struct_size = offsetof(ob_driver, host_alloc);
  const ob_driver table = whole_table(older);
  CHECK_EQ(std::string(table.name), "older");
  CHECK(table.host_alloc == nullptr);
  older.struct_size = sizeof(ob_driver) + 64;  // a newer one
  CHECK(whole_table(older).host_alloc == behind);
}

TEST(a_plan_runs) {
  for (const size_t count : {2u, 16u, 1000u}) {
    const std::vector<float> y = scale(count, 3.0);
    for (size_t i = 0; i < count; ++i) CHECK_EQ(y[i], 3.0f * static_cast<float>(i) + 1.0f);
  }
}

TEST(guards_reject_other_shapes) {
  const std::string bytes = scale_plan();
  const auto plan = Plan::parse(bytes.data(), bytes.size());
  const int64_t one = 1, stride = 1;
  Input inputs[2];
  inputs[0].tensor = {nullptr, DType::kFloat32, 1, &one, &stride, 0};
  std::vector<Scalar> symbols;
  CHECK(!bind_symbols(*plan, device().properties(), inputs, symbols));
}

TEST(failures_in_mid_plan_leave_nothing_behind) {
  scale(100, 1.0);
  const int64_t before = device().allocator().statistics().allocated.current;
  for (const char* function : {"launch", "copy", "memory_alloc"}) {
    device().synchronize();
    device().allocator().empty_cache();
    fixture::fail(function, 1, OB_INTERNAL);
    CHECK_THROWS(scale(100, 1.0), Error);
    fixture::fail(function, 0, OB_OK);
    CHECK_EQ(device().allocator().statistics().allocated.current, before);
    CHECK_EQ(scale(4, 2.0)[3], 7.0f);
  }
}

TEST(out_of_memory_frees_the_cache_and_retries) {
  CachingAllocator& allocator = device().allocator();
  allocator.empty_cache();
  const uint64_t old_limit = allocator.limit();
  const auto held = static_cast<uint64_t>(allocator.statistics().reserved.current);
  allocator.set_limit(held + (64u << 20));
  Stream& stream = device().default_stream();
  Block* first = device().residency().allocate(40u << 20, stream);
  allocator.free(first);
  // Only fits if the first one's memory is given back.
  Block* second = device().residency().allocate(60u << 20, stream);
  CHECK(second != nullptr);
  CHECK_THROWS(device().residency().allocate(40u << 20, stream), OutOfMemoryError);
  allocator.free(second);
  allocator.set_limit(old_limit);
  CHECK_EQ(allocator.statistics().num_ooms, 1);
}

TEST(allocator_matches_a_model) {
  CachingAllocator& allocator = device().allocator();
  Stream& a = device().default_stream();
  Stream& b = device().pool_stream();
  std::mt19937 random(7);
  std::vector<std::pair<Block*, uint64_t>> live;
  const int64_t base = allocator.statistics().allocated.current;
  int64_t expected = base;
  for (int i = 0; i < 20000; ++i) {
    if (live.empty() || random() % 3 != 0) {
      const uint64_t bytes = 1 + random() % (random() % 10 == 0 ? 3000000 : 5000);
      Block* block = device().residency().allocate(bytes, random() % 2 == 0 ? a : b);
      CHECK(block->size >= bytes);
      for (const auto& [other, size] : live) {
        CHECK(block->ptr + block->size <= other->ptr || other->ptr + other->size <= block->ptr);
      }
      if (random() % 8 == 0) allocator.record_stream(block, random() % 2 == 0 ? a : b);
      live.emplace_back(block, bytes);
      expected += static_cast<int64_t>(bytes);
    }
    if (live.size() > 200 || random() % 2 == 0) {
      const size_t victim = random() % live.size();
      expected -= static_cast<int64_t>(live[victim].second);
      allocator.free(live[victim].first);
      live[victim] = live.back();
      live.pop_back();
    }
    const MemoryStatistics s = allocator.statistics();
    CHECK_EQ(s.allocated.current, expected);
    CHECK(s.allocated.current <= s.active.current && s.active.current <= s.reserved.current);
    CHECK_EQ(s.cached.current, s.reserved.current - s.active.current);
  }
  for (const auto& [block, size] : live) allocator.free(block);
  allocator.empty_cache();
  CHECK_EQ(allocator.statistics().allocated.current, base);
}

TEST(threads_share_the_allocator) {
  CachingAllocator& allocator = device().allocator();
  const int64_t base = allocator.statistics().allocated.current;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<Block*> live;
      for (int i = 0; i < 5000; ++i) {
        live.push_back(device().residency().allocate(1 + random() % 4000, device().default_stream()));
        if (live.size() < 50) continue;
        allocator.free(live.front());
        live.erase(live.begin());
      }
      for (Block* block : live) allocator.free(block);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(allocator.statistics().allocated.current, base);
}

TEST(addresses_find_their_allocation) {
  std::vector<Allocation*> all;
  for (const uint64_t bytes : {1u, 4096u, 5000u, 1u << 20}) all.push_back(Allocation::create(device(), bytes));
  for (Allocation* allocation : all) {
    const auto* first = static_cast<const char*>(allocation->address());
    CHECK(Allocation::find(first) == allocation);
    CHECK(Allocation::find(first + allocation->size() - 1) == allocation);
    CHECK(allocation->state() == State::kUnbacked);
  }
  const void* gone = all[1]->address();
  for (Allocation* allocation : all) allocation->release();
  CHECK(Allocation::find(gone) == nullptr);
  CHECK(Allocation::find(&gone) == nullptr);
}

TEST(programs_come_back_from_disk) {
  namespace fs = std::filesystem;
  const fs::path directory = fs::temp_directory_path() / ("outboard-test-" + std::to_string(getpid()));
  ProgramCache::set_directory(directory.string());
  const std::string source = "__kernel void k(__global float* x) { x[get_global_id(0)] = 2.0f; }";
  ProgramCache(device()).kernel(source, "", "k")->get();
  ProgramCache second(device());
  second.kernel(source, "", "k")->get();
  CHECK_EQ(second.statistics().loaded_from_disk, 1);
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) std::ofstream(entry.path(), std::ios::app) << "damage";
  }
  ProgramCache third(device());
  third.kernel(source, "", "k")->get();
  CHECK_EQ(third.statistics().built, 1);
  ProgramCache fourth(device());
  fourth.kernel(source, "", "k")->get();
  CHECK_EQ(fourth.statistics().loaded_from_disk, 1);
  fs::remove_all(directory);
  ProgramCache::set_directory("/proc/no/such/place");
  ProgramCache unwritable(device());
  CHECK(unwritable.kernel(source, "", "k")->get() != nullptr);
  ProgramCache::set_directory("");
}

TEST(a_program_under_the_name_of_another_is_not_taken_for_it) {
  namespace fs = std::filesystem;
  const fs::path directory = fs::temp_directory_path() / ("outboard-swapped-" + std::to_string(getpid()));
  ProgramCache::set_directory(directory.string());
  const std::string sources[2] = {"__kernel void k(__global float* x) { x[0] = 5.0f; }",
                                  "__kernel void k(__global float* x) { x[0] = 6.0f; }"};
  for (const std::string& source : sources) ProgramCache(device()).kernel(source, "", "k")->get();
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  CHECK_EQ(files.size(), 2u);
  fs::rename(files[0], directory / "aside");
  fs::rename(files[1], files[0]);
  fs::rename(directory / "aside", files[1]);
  ProgramCache swapped(device());
  for (const std::string& source : sources) swapped.kernel(source, "", "k")->get();
  CHECK_EQ(swapped.statistics().built, 2);
  ProgramCache replaced(device());
  for (const std::string& source : sources) replaced.kernel(source, "", "k")->get();
  CHECK_EQ(replaced.statistics().loaded_from_disk, 2);
  for (const fs::path& file : files) fs::permissions(file, fs::perms::others_write, fs::perm_options::add);
  ProgramCache open(device());
  for (const std::string& source : sources) open.kernel(source, "", "k")->get();
  CHECK_EQ(open.statistics().built, 2);
  fs::remove_all(directory);
  ProgramCache::set_directory("");
}

TEST(a_binary_that_lacks_a_kernel_is_built_again) {
  const std::string whole =
      "__kernel void first(__global float* x) { x[0] = 1.5f; } __kernel void second(__global float* x) { x[0] = 2.5f; "
      "}";
  ProgramCache other(device());
  const std::string part = "__kernel void first(__global float* x) { x[0] = 1.5f; }";
  other.kernel(part, "", "first")->get();
  const std::string sealed = other.binary(part, "");
  if (sealed.empty()) return;  // the driver gives no binaries
  ProgramCache ignored(device());
  ignored.offer(whole, "", sealed);  // that of another program
  ignored.kernel(whole, "", "first")->get();
  CHECK_EQ(ignored.statistics().built, 1);
  // The same under the right name, as a driver's bug would leave it.
  const std::string body = sha256_hex(whole + '\0' + '\0' + device().properties().cache_key) + sealed.substr(129);
  ProgramCache cache(device());
  cache.offer(whole, "", sha256_hex(body) + '\n' + body);
  const KernelUse first = cache.kernel(whole, "", "first");
  CHECK(first->get() != nullptr);
  CHECK_EQ(cache.statistics().built, 0);
  CHECK(cache.kernel(whole, "", "second")->get() != nullptr);
  CHECK(first->get() != nullptr);
  CHECK_EQ(cache.statistics().built, 1);
  CHECK_THROWS(cache.kernel(whole, "", "third")->get(), Error);
  CHECK_EQ(cache.statistics().built, 1);
}

TEST(a_wrong_program_reports_its_log) {
  try {
    device().programs().kernel("__kernel void k() { nonsense; }", "", "k")->get();
  } catch (const Error& error) {
    CHECK_EQ(error.status(), OB_BUILD_FAILED);
    CHECK(std::string(error.what()).size() > 40);
    return;
  }
  check::fail(__FILE__, __LINE__, "a wrong program was accepted");
}

namespace {

/// What the process writes to its standard error while `function` runs.
template <typename Function>
std::string standard_error_of(Function&& function) {
  std::FILE* const file = std::tmpfile();
  std::fflush(stderr);
  const int before = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  function();
  std::fflush(stderr);
  dup2(before, STDERR_FILENO);
  close(before);
  std::string text(static_cast<size_t>(lseek(fileno(file), 0, SEEK_END)), '\0');
  lseek(fileno(file), 0, SEEK_SET);
  const ssize_t got = read(fileno(file), text.data(), text.size());
  std::fclose(file);
  return text.substr(0, static_cast<size_t>(std::max<ssize_t>(got, 0)));
}

}  // namespace

TEST(a_program_with_warnings_is_built_in_silence) {
  const std::string source = "#warning nobody wants to know\n__kernel void k(__global float* x) { x[0] = 1; }";
  CHECK_EQ(standard_error_of([&] { ProgramCache(device()).kernel(source, "", "k")->get(); }), std::string());
}

TEST(names_made_by_the_preprocessor_are_found) {  // by drivers that look for the functions a program uses
  const std::string source =
      "#define JOIN(a, b) a##b\n__kernel void k(__global float* x) { x[0] = JOIN(ex, p)(JOIN(si, n)(x[0])); }";
  CHECK(ProgramCache(device()).kernel(source, "", "k")->get() != nullptr);
}

TEST(programs_are_built_beside_the_caller) {
  ProgramCache cache(device());
  std::vector<KernelUse> kernels;
  for (int i = 0; i < 6; ++i) {
    const std::string source = "__kernel void k(__global float* x) { x[0] += " + std::to_string(i) + ".25f; }";
    kernels.push_back(cache.kernel(source, "", "k"));
    CHECK(&*cache.kernel(source, "", "k") == &*kernels.back());
  }
  CHECK(cache.statistics().waiting > 0);
  for (const KernelUse& kernel : kernels) {
    CHECK(kernel->get() != nullptr);
    CHECK(kernel->get() == kernel->get());
  }
  CHECK_EQ(cache.statistics().built, 6);
}

namespace {

/// For as long as it lives, so many programs that nobody uses are kept.
struct KeepUnused {
  explicit KeepUnused(size_t count) { ProgramCache::keep_unused(count); }
  ~KeepUnused() { ProgramCache::keep_unused(1024); }
};

/// Adds a number of its own to x[0].
std::string adding(int number) {
  return "__kernel void k(__global float* x) { x[0] += " + std::to_string(number) + ".0f; }";
}

/// Asks for programs that nobody goes on using.
void pass_by(ProgramCache& cache, int first, int count) {
  for (int i = first; i < first + count; ++i) cache.kernel(adding(i), "", "k")->get();
}

}  // namespace

TEST(programs_that_nobody_uses_go_and_come_back) {
  const KeepUnused few(4);
  ProgramCache cache(device());
  const uint64_t before = fixture::calls("program_release");
  const KernelUse kept = cache.kernel(adding(100), "", "k");
  pass_by(cache, 101, 20);
  CHECK(cache.statistics().held <= 8);
  CHECK(fixture::calls("program_release") >= before + 13);
  const fixture::Holder x = fixture::upload({1.0f});
  Stream& stream = device().default_stream();
  const Pin pin(*x, stream);
  stream.launch(fixture::launch_of(*kept, pin.pointer()));
  stream.launch(fixture::launch_of(*cache.kernel(adding(101), "", "k"), pin.pointer()));
  CHECK_EQ(fixture::download(*x, 1)[0], 202.0f);
}

TEST(programs_stay_while_launches_of_them_wait) {
  const KeepUnused many(100);
  ProgramCache cache(device());
  const fixture::Holder x = fixture::upload({0.0f}), y = fixture::upload({0.0f});
  Stream& stream = device().pool_stream();
  const ob_ptr pointer = Pin(*x, stream).pointer(), other = Pin(*y, stream).pointer();
  pass_by(cache, 1, 8);
  for (int i = 0; i < 20; ++i) fixture::keep_busy(stream, other);
  for (int i = 1; i <= 8; ++i) {
    const KernelUse kernel = cache.kernel(adding(i), "", "k");
    stream.launch(fixture::launch_of(*kernel, pointer));
  }
  const uint64_t before = fixture::calls("program_release");
  const KeepUnused few(1);
  pass_by(cache, 9, 1);  // none of them is used any more: all begin to leave
  const uint64_t released = fixture::calls("program_release") - before;
  const bool was_busy = !stream.query();
  stream.synchronize();
  CHECK_EQ(fixture::download(*x, 1)[0], 36.0f);
  CHECK(was_busy);
  CHECK_EQ(released, 0u);
  pass_by(cache, 10, 1);
  CHECK(fixture::calls("program_release") - before >= 8);
}

TEST(a_graph_uses_its_programs) {
  const KeepUnused few(2);
  ProgramCache cache(device());
  const fixture::Holder x = fixture::upload({0.0f});
  Graph graph(device());
  {
    Stream& stream = graph.begin(device().default_stream(), 0);
    const Pin pin(*x, stream);
    stream.launch(fixture::launch_of(*cache.kernel(adding(7), "", "k"), pin.pointer()));
    graph.end();
  }
  pass_by(cache, 400, 10);
  const int64_t with_graph = cache.statistics().held;
  for (int i = 0; i < 3; ++i) graph.replay(device().default_stream());
  CHECK_EQ(fixture::download(*x, 1)[0], 21.0f);
  graph.reset();
  pass_by(cache, 500, 10);
  CHECK(cache.statistics().held <= with_graph);
  cache.kernel(adding(7), "", "k")->get();
}

TEST(events_measure_time) {
  Stream& stream = device().default_stream();
  Event start(device()), end(device());
  CHECK_THROWS(start.elapsed_ms(end), Error);
  start.record(stream);
  scale(1 << 20, 1.0);
  end.record(stream);
  end.synchronize();
  CHECK(end.query());
  CHECK(start.elapsed_ms(end) > 0);
}

TEST(wrong_indices_are_errors) {
  CHECK_THROWS(Runtime::get().device(99), Error);
  CHECK_THROWS(Runtime::get().device(-1), Error);
  CHECK_THROWS(device().stream(77), Error);
}

int main() { return fixture::run_all(); }
