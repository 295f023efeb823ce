// SPDX-License-Identifier: Apache-2.0
// fuzz_files COUNT [SEED]: changes plans and exported models at random, makes their checksums right again, loads them,
// and runs what loads on a driver that ends the process when it is led out of its memory. Built with sanitizers by
// `make fuzz-files`. With the same seed it does the same; a number that failed runs alone with `fuzz_files 1 SEED+i`.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "outboard/runner.h"
#include "runtime/base/error.h"
#include "runtime/device.h"
#include "runtime/plans/executor.h"
#include "sample_models.h"

// A file may ask for much memory, and be told that there is none: here sooner than on the whole machine. Not inline, or
// compilers warn that what one of them gave is returned by the other.
__attribute__((noinline)) void* operator new(size_t bytes) {
  void* memory = bytes > (size_t{256} << 20) ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { std::free(memory); }

using namespace outboard;

namespace {

struct Counts {
  uint64_t parsed = 0, ran = 0;
} counts;

/// Random changes of bytes.
class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  size_t below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  std::string change(std::string bytes) {
    for (size_t i = 0, changes = 1 + below(3); i < changes && !bytes.empty(); ++i) change_once(bytes);
    return bytes;
  }

 private:
  void change_once(std::string& bytes) {
    const size_t at = below(bytes.size());
    switch (below(8)) {
      case 0:
        bytes[at] = static_cast<char>(random_());
        return;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        return;
      case 2:
        bytes[at] = static_cast<char>(bytes[at] + (below(2) == 0 ? 1 : -1));
        return;
      case 3:
        return put(bytes, at, static_cast<uint32_t>(number()));
      case 4:
        return put(bytes, at, number());
      case 5:
        bytes.erase(at, 1 + below(16));
        return;
      case 6:
        bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(32)));
        return;
      default:  // part of it elsewhere
        const std::string part = bytes.substr(below(bytes.size()), 1 + below(24));
        bytes.replace(at, std::min(part.size(), bytes.size() - at), part);
    }
  }

  template <typename T>
  static void put(std::string& bytes, size_t at, T value) {
    if (bytes.size() - at >= sizeof(value)) std::memcpy(&bytes[at], &value, sizeof(value));
  }

  /// One on which arithmetic tends to go wrong.
  uint64_t number() {
    static const int64_t kNumbers[] = {0,
                                       1,
                                       2,
                                       3,
                                       7,
                                       8,
                                       63,
                                       64,
                                       65,
                                       255,
                                       256,
                                       -1,
                                       -2,
                                       -8,
                                       INT32_MAX,
                                       INT32_MIN,
                                       INT64_MAX,
                                       INT64_MIN,
                                       1u << 31,
                                       UINT32_MAX,
                                       int64_t{1} << 32,
                                       int64_t{1} << 48,
                                       int64_t{1} << 56,
                                       int64_t{1} << 61,
                                       int64_t{1} << 62};
    const auto value = static_cast<uint64_t>(kNumbers[below(sizeof(kNumbers) / sizeof(kNumbers[0]))]);
    return value + (below(4) == 0 ? below(5) - 2 : 0);
  }

  std::mt19937_64 random_;
};

/// All kinds of steps, symbols, arguments and results.
std::string rich_plan() {
  using wire::number;
  PlanParts plan;
  plan.inputs = {Plan::kTensorInput, Plan::kTensorInput, Plan::kIntInput, Plan::kFloatInput, Plan::kNoneInput};
  const wire::Code n{{Expr::kSymbol, 0}}, bytes{{Expr::kSymbol, 0}, {Expr::kConst, 4}, {Expr::kMul, 0}};
  plan.symbols = {
      wire::symbol(Symbol::kSize, 0, 0),
      wire::symbol(Symbol::kStride, 1, 0),
      wire::symbol(Symbol::kStorageOffset, 1),
      wire::symbol(Symbol::kInt, 2),
      wire::symbol(Symbol::kFloat, 3),
      wire::symbol(Symbol::kComputeUnits, 0),
      wire::symbol(
          Symbol::kDerived, 0, 0,
          {{Expr::kSymbol, 0}, {Expr::kSymbol, 3}, {Expr::kCeilDiv, 0}, {Expr::kConst, 2}, {Expr::kShiftLeft, 0}})};
  plan.guards = {PlanWriter().expr({{Expr::kSymbol, 0},
                                    {Expr::kConst, 0},
                                    {Expr::kNe, 0},
                                    {Expr::kSymbol, 1},
                                    {Expr::kConst, 1},
                                    {Expr::kSelect, 0}})};
  plan.buffers = 10;
  plan.source = "__kernel void first() {} __kernel void second() {}";
  plan.entries = {"first", "second"};
  plan.assertions = {wire::assertion(5, 0, "wrong"), wire::assertion(6, 1, "out of range")};
  const PlanWriter real = PlanWriter().u8(Argument::kFloat32).u32(0).u32(4).expr({});
  const PlanWriter tensor = PlanWriter().u8(CallArgument::kTensor).append(wire::view(6, n));
  const PlanWriter integer = PlanWriter().u8(CallArgument::kInt).expr(n);
  const PlanWriter list = PlanWriter().u8(CallArgument::kList).u32(2).append(tensor).append(integer);
  const PlanWriter text = PlanWriter().u8(CallArgument::kString).text("sum");
  plan.steps = {
      wire::allocate(5, number(64)),
      wire::allocate(6, bytes),
      wire::seeds(5, 24),
      wire::launch(0, n, {wire::pointer(0), wire::pointer(6), wire::int64(n), real, wire::assertions()}),
      wire::copy(6, 4, 5, 8, 16),
      wire::call("fuzz::call", {tensor, list, text, integer}, {wire::view(6, number(2), 2, 1)}),
      wire::free(5),
      wire::allocate(7, {{Expr::kSymbol, 5}, {Expr::kConst, 8}, {Expr::kMax, 0}, {Expr::kConst, 4}, {Expr::kMul, 0}}),
      wire::launch(1, number(32), {wire::pointer(7, 8), wire::pointer(1)})};
  plan.outputs = {wire::output(wire::view(6, n)),
                  wire::output(wire::view(0, number(2), 2)),
                  wire::output(wire::view(6, number(1), 1, 1)),
                  PlanWriter().u8(Output::kInput).u32(1),
                  PlanWriter().u8(Output::kInt).expr({{Expr::kSymbol, 5}}),
                  PlanWriter().u8(Output::kFloatSymbol).u32(4),
                  PlanWriter().u8(Output::kNone)};
  return plan.bytes();
}

constexpr size_t kPlanHeader = 36;

/// A plan with other contents under a right checksum.
std::string changed_plan(const std::string& plan, Mutator& mutator) {
  return PlanWriter().bytes(mutator.change(plan.substr(kPlanHeader))).finish();
}

/// A model file with other contents under right checksums.
std::string changed_model(Mutator& mutator) {
  ModelParts parts = samples::scale_columns();
  if (mutator.below(3) != 0) {
    parts.plan = changed_plan(parts.plan, mutator);
    return parts.bytes();
  }
  // All but the plan, which its own checksum would protect.
  std::string file = parts.bytes();
  uint64_t header;
  std::memcpy(&header, file.data() + 16, sizeof(header));
  std::string body = file.substr(64, header);
  const size_t plan = body.find(parts.plan), end = plan + parts.plan.size();
  if (mutator.below(2) == 0) {
    body = mutator.change(body.substr(0, plan)) + body.substr(plan);
  } else {
    body = body.substr(0, end) + mutator.change(body.substr(end));
  }
  const auto digest = sha256(body.data(), body.size());
  const uint64_t sizes[2] = {body.size(), 64 + body.size() + file.size() - 64 - header};
  return file.substr(0, 16) + std::string(reinterpret_cast<const char*>(sizes), sizeof(sizes)) +
         std::string(reinterpret_cast<const char*>(digest.data()), digest.size()) + body + file.substr(64 + header);
}

/// The file that models are loaded from.
class File {
 public:
  File() {
    if (mkdtemp(folder_) == nullptr) std::abort();
    path_ = std::string(folder_) + "/model.obm";
  }
  ~File() {
    unlink(path_.c_str());
    rmdir(folder_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const char* hold(const std::string& bytes) const {
    const int file = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || write(file, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) std::abort();
    close(file);
    return path_.c_str();
  }

 private:
  char folder_[32] = "/tmp/outboard-fuzz-XXXXXX";
  std::string path_;
};

size_t bytes_of(const std::vector<int64_t>& sizes, ob_dtype dtype) {
  uint64_t bytes = element_size(static_cast<DType>(dtype));
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) return SIZE_MAX;
  }
  return bytes;
}

/// Runs a model as outboard-run does, with sizes that it says it takes.
void run_model(ob_model model, Mutator& mutator) {
  std::vector<std::vector<int64_t>> shapes;
  std::vector<std::string> data;
  std::vector<ob_array> arrays;
  const uint32_t count = ob_model_input_count(model);
  shapes.reserve(count);
  data.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    ob_array_info info;
    if (ob_model_input(model, i, &info) != OB_OK) std::abort();
    auto& shape = shapes.emplace_back();
    for (uint32_t d = 0; d < info.rank; ++d) {
      shape.push_back(
          info.least[d] +
          static_cast<int64_t>(mutator.below(
              std::min<uint64_t>(static_cast<uint64_t>(info.most[d]) - static_cast<uint64_t>(info.least[d]), 9) + 1)));
    }
    const size_t bytes = bytes_of(shape, info.dtype);
    if (bytes > (1u << 20)) return;
    data.emplace_back(bytes, '\1');
    arrays.push_back({info.name, info.dtype, info.rank, shape.data(), data.back().data(), bytes});
  }
  ob_results results = nullptr;
  if (ob_model_run(model, arrays.data(), count, &results) != OB_OK) return;
  ++counts.ran;
  for (uint32_t i = 0; i < ob_model_output_count(model); ++i) {
    ob_array array;
    ob_array_info info;
    if (ob_results_array(results, i, &array) != OB_OK || ob_model_output(model, i, &info) != OB_OK) std::abort();
    if (array.rank != info.rank) std::abort();
    volatile uint8_t sum = 0;
    for (uint64_t byte = 0; byte < array.bytes; ++byte) sum = sum + static_cast<const uint8_t*>(array.data)[byte];
  }
  ob_results_release(results);
}

void fuzz_model(const File& file, Mutator& mutator) {
  ob_model model = nullptr;
  if (ob_model_open(file.hold(changed_model(mutator)), nullptr, 0, &model) != OB_OK) return;
  ++counts.parsed;
  run_model(model, mutator);
  ob_model_close(model);
}

/// Tensors and numbers for the inputs of `rich_plan`.
struct Inputs {
  explicit Inputs(Device& device)
      : first(Allocation::create_internal(device, 32)), second(Allocation::create_internal(device, 64)) {}
  ~Inputs() {
    first->release();
    second->release();
  }
  Inputs(const Inputs&) = delete;
  Inputs& operator=(const Inputs&) = delete;

  /// In the order of any plan's inputs.
  std::vector<Input> of(const Plan& plan) const {
    std::vector<Input> made(plan.inputs.size());
    for (size_t i = 0; i < made.size(); ++i) {
      if (plan.inputs[i] == Plan::kIntInput) made[i].scalar.i = 3;
      if (plan.inputs[i] == Plan::kFloatInput) made[i].scalar.d = 0.5;
      if (plan.inputs[i] != Plan::kTensorInput) continue;
      made[i].tensor = i == 1 ? TensorBinding{second, DType::kFloat32, 2, sizes, strides, 4}
                              : TensorBinding{first, DType::kFloat32, 1, sizes + 2, strides + 1, 0};
    }
    return made;
  }

  Allocation *first, *second;
  const int64_t sizes[3] = {3, 4, 8}, strides[2] = {4, 1};
};

void run_plan(const std::shared_ptr<const Plan>& plan, const Inputs& given, Device& device) {
  const Executable executable(plan, device);
  const std::vector<Input> inputs = given.of(*plan);
  std::vector<Scalar> symbols;
  if (!executable.bind(inputs.data(), symbols)) return;
  const auto seeds = [](int64_t* out, int64_t count) { std::fill_n(out, count, 1); };
  ExecutionContext context{device.default_stream(), seeds};
  std::vector<Result> results;
  executable.run(inputs.data(), symbols, context, results);
  ++counts.ran;
  for (const Result& result : results) {
    if (result.new_allocation) result.allocation->release();
  }
}

void fuzz_plan(const Inputs& inputs, Device& device, Mutator& mutator) {
  static const std::string rich = rich_plan(), scale = scale_plan();
  const std::string bytes = changed_plan(mutator.below(4) == 0 ? scale : rich, mutator);
  try {
    const std::shared_ptr<const Plan> plan = Plan::parse(bytes.data(), bytes.size());
    ++counts.parsed;
    run_plan(plan, inputs, device);
  } catch (const Error&) {
    // What it should be. Anything else that is thrown ends the process.
  } catch (const std::bad_alloc&) {
    // Nor is it wrong to ask for much.
  }
}

/// What plans may call: looks whether all that it is given lies in memory.
void check_call(HostCall& call, void (*check)(ob_ptr, uint64_t)) {
  const auto look = [&](const TensorView& view) {
    check(view.data, span_bytes(view.sizes.begin(), view.strides.begin(), view.sizes.size(), view.dtype));
  };
  const std::function<void(const HostArgument&)> look_into = [&](const HostArgument& argument) {
    if (argument.kind == CallArgument::kTensor) look(argument.tensor);
    for (const HostArgument& item : argument.list) look_into(item);
  };
  for (const HostArgument& argument : call.arguments) look_into(argument);
  for (const TensorView& view : call.results) look(view);
}

/// Failures of what was submitted are reported to who waits.
void wait_for(Device& device) {
  try {
    device.synchronize();
  } catch (const Error&) {
    // A kernel that is not in its program, or a program that cannot be built.
  }
}

void start() {
  setenv("OUTBOARD_MEMORY_LIMIT", "64MiB", 1);
  const char* const drivers[] = {OUTBOARD_FUZZ_DRIVER};
  if (ob_runner_start(drivers, 1) != OB_OK) {
    std::fprintf(stderr, "%s\n", ob_runner_error());
    std::exit(1);
  }
  void* library = dlopen(OUTBOARD_FUZZ_DRIVER, RTLD_NOW);
  const auto check = reinterpret_cast<void (*)(ob_ptr, uint64_t)>(dlsym(library, "outboard_fuzz_check"));
  HostFunctions::get().add("fuzz::*", [check](HostCall& call) { check_call(call, check); });
}

}  // namespace

int main(int count, char** values) {
  const uint64_t rounds = count > 1 ? std::strtoull(values[1], nullptr, 10) : 1000;
  const uint64_t seed = count > 2 ? std::strtoull(values[2], nullptr, 10) : 1;
  start();
  const File file;
  Device& device = Runtime::get().device(0);
  const Inputs inputs(device);
  for (uint64_t i = 0; i < rounds; ++i) {
    Mutator mutator(seed + i);
    if (mutator.below(2) == 0) {
      fuzz_plan(inputs, device, mutator);
    } else {
      fuzz_model(file, mutator);
    }
    if (i % 256 == 255) wait_for(device);
  }
  wait_for(device);
  std::printf("%" PRIu64 " files and plans, %" PRIu64 " loaded, %" PRIu64 " ran\n", rounds, counts.parsed, counts.ran);
  return counts.ran > rounds / 100 ? 0 : 1;  // whatever is refused at once tests little
}
