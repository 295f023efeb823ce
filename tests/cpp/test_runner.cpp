// SPDX-License-Identifier: Apache-2.0
// Exported models: damaged files are refused, whole ones run, without Python.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include "check.h"
#include "fixture.h"
#include "outboard/runner.h"
#include "runner/mapped_file.h"
#include "runtime/base/error.h"
#include "runtime/base/sha256.h"
#include "sample_models.h"

using namespace outboard;
using samples::kBatch;
using samples::scale_columns;
using samples::Size;

namespace {

ModelFile parse(const std::string& bytes) {
  return ModelFile::parse(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

/// A file that goes with the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& bytes) {
    char name[] = "/tmp/outboard-runner-XXXXXX";
    const int descriptor = mkstemp(name);
    if (descriptor < 0) throw std::runtime_error("mkstemp failed");
    close(descriptor);
    path_ = name;
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  ~TemporaryFile() { unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const char* path() const { return path_.c_str(); }

 private:
  std::string path_;
};

/// A model on the fixture's device.
class OpenModel {
 public:
  explicit OpenModel(const std::string& bytes) {
    fixture::device();
    const TemporaryFile file(bytes);
    status_ = ob_model_open(file.path(), nullptr, 0, &model_);
    if (status_ != OB_OK) text_ = ob_runner_error();
  }
  ~OpenModel() { ob_model_close(model_); }
  OpenModel(const OpenModel&) = delete;
  OpenModel& operator=(const OpenModel&) = delete;
  ob_model get() const { return model_; }
  ob_status status() const { return status_; }
  const std::string& text() const { return text_; }

 private:
  ob_model model_ = nullptr;
  ob_status status_;
  std::string text_;
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Checks that running fails with this status and that the text has this part in it.
void check_refused(ob_model model, const std::vector<ob_array>& inputs, const std::string& part,
                   ob_status expected = OB_INVALID_ARGUMENT) {
  ob_results results = nullptr;
  const ob_status status = ob_model_run(model, inputs.data(), static_cast<uint32_t>(inputs.size()), &results);
  CHECK_EQ(static_cast<int>(status), static_cast<int>(expected));
  if (!contains(ob_runner_error(), part)) throw check::Failure(std::string("not '") + part + "': " + ob_runner_error());
}

struct Rows {
  explicit Rows(int64_t n) : sizes{n, 3}, data(static_cast<size_t>(n * 3)) {
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i + 1);
  }
  ob_array array() const { return {"x", OB_FLOAT32, 2, sizes, data.data(), data.size() * sizeof(float)}; }

  int64_t sizes[2];
  std::vector<float> data;
};

/// Whether y and n are what `scale_columns` should make of the rows.
bool runs_right(ob_model model, const Rows& rows) {
  const ob_array x = rows.array();
  ob_results results;
  if (ob_model_run(model, &x, 1, &results) != OB_OK) return false;
  ob_array y, n, same;
  bool right = ob_results_array(results, 0, &y) == OB_OK && ob_results_array(results, 1, &n) == OB_OK &&
               ob_results_array(results, 2, &same) == OB_OK;
  right = right && y.sizes[0] == 3 && y.sizes[1] == rows.sizes[0] && n.rank == 0 &&
          *static_cast<const int64_t*>(n.data) == rows.sizes[0] &&
          std::memcmp(same.data, rows.data.data(), same.bytes) == 0 && same.bytes == x.bytes;
  const float weight[3] = {1, 10, 100};
  for (int64_t i = 0; right && i < rows.sizes[0] * 3; ++i) {
    const int64_t row = i / 3, column = i % 3;
    right = static_cast<const float*>(y.data)[column * rows.sizes[0] + row] ==
            rows.data[static_cast<size_t>(i)] * weight[column];
  }
  ob_results_release(results);
  return right;
}

}  // namespace

TEST(a_whole_model_parses) {
  const ModelFile model = parse(scale_columns().bytes());
  CHECK_EQ(model.inputs.at(0).name, "x");
  CHECK_EQ(model.symbols.at(0).most, 8);
  CHECK_EQ(model.weights.at(0).nbytes, 12u);
  CHECK_EQ(model.plan->steps.size(), 2u);
}

TEST(every_truncation_is_rejected) {
  const std::string bytes = scale_columns().bytes();
  for (size_t length = 0; length < bytes.size(); ++length) CHECK_THROWS(parse(bytes.substr(0, length)), Error);
}

TEST(every_flipped_byte_is_noticed) {
  const std::string whole = scale_columns().bytes();
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string bytes = whole;
    bytes[i] = static_cast<char>(bytes[i] ^ 0x11);
    const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
    bool noticed = false;
    try {
      const ModelFile model = parse(bytes);
      contents(model.weights.at(0), data, bytes.size());
    } catch (const Error&) {
      noticed = true;
    }
    if (!noticed) throw check::Failure("byte " + std::to_string(i) + " changed unnoticed");
  }
}

TEST(damage_behind_a_right_checksum_never_crashes) {
  const std::string whole = scale_columns().bytes();
  uint64_t header;
  std::memcpy(&header, whole.data() + 16, sizeof(header));
  std::mt19937 random(5);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = whole;
    const unsigned changes = 1 + random() % 3;
    for (unsigned i = 0; i < changes; ++i) bytes[64 + random() % header] = static_cast<char>(random());
    const auto digest = sha256(bytes.data() + 64, header);
    std::memcpy(bytes.data() + 32, digest.data(), digest.size());
    try {
      const ModelFile model = parse(bytes);
      for (const ModelFile::Weight& weight : model.weights) {
        contents(weight, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
      }
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(refused > 10000);  // what is left changed names
}

TEST(what_contradicts_itself_is_rejected) {
  ModelParts longer = scale_columns();
  longer.weight_bytes = 4096;
  CHECK_THROWS(parse(longer.bytes()), Error);
  ModelParts unknown = scale_columns();
  unknown.symbols.clear();
  CHECK_THROWS(parse(unknown.bytes()), Error);
  ModelParts fewer = scale_columns();
  fewer.plan_inputs.pop_back();
  CHECK_THROWS(parse(fewer.bytes()), Error);
  ModelParts results = scale_columns();
  results.outputs.pop_back();
  CHECK_THROWS(parse(results.bytes()), Error);
  ModelParts programs = scale_columns();
  programs.binaries.clear();
  CHECK_THROWS(parse(programs.bytes()), Error);
  ModelParts kinds = scale_columns();
  std::swap(kinds.outputs[0], kinds.outputs[1]);
  CHECK_THROWS(parse(kinds.bytes()), Error);
  ModelParts shapeless = scale_columns();
  shapeless.inputs = {ModelParts::argument("x", {{Size::kAny, 0}, {Size::kFixed, 3}})};
  CHECK_THROWS(parse(shapeless.bytes()), Error);
}

TEST(spans_that_no_memory_has_are_rejected) {
  const int64_t sizes[2] = {INT64_MAX, 3}, strides[2] = {INT64_MAX, 1}, none[2] = {0, 3};
  CHECK_THROWS(span_bytes(sizes, strides, 2, DType::kFloat32), Error);
  const int64_t negative[2] = {INT64_MIN, 3};
  CHECK_THROWS(span_bytes(negative, strides, 2, DType::kFloat32), Error);
  CHECK_THROWS(span_bytes(none, negative, 2, DType::kFloat32), Error);
  CHECK_EQ(span_bytes(none, strides, 2, DType::kFloat32), 0u);
  CHECK_EQ(span_bytes(sizes, strides, 0, DType::kFloat32), 4u);
}

TEST(a_model_runs_with_all_its_sizes) {
  const OpenModel model(scale_columns().bytes());
  CHECK_EQ(model.text(), "");
  for (const int64_t n : {1, 2, 8}) CHECK(runs_right(model.get(), Rows(n)));
}

TEST(the_signature_can_be_asked_for) {
  const OpenModel model(scale_columns().bytes());
  CHECK_EQ(ob_model_input_count(model.get()), 1u);
  CHECK_EQ(ob_model_output_count(model.get()), 3u);
  ob_array_info info;
  CHECK(ob_model_input(model.get(), 0, &info) == OB_OK);
  CHECK_EQ(std::string(info.name), "x");
  CHECK_EQ(info.least[0], 1);
  CHECK_EQ(info.most[0], 8);
  CHECK_EQ(info.most[1], 3);
  CHECK(ob_model_input(model.get(), 1, &info) == OB_INVALID_ARGUMENT);
  CHECK(ob_model_output(model.get(), 3, &info) == OB_INVALID_ARGUMENT);
}

TEST(wrong_inputs_are_refused_and_the_model_works_on) {
  const OpenModel model(scale_columns().bytes());
  const Rows rows(2), nine(9), seven(7);
  const ob_array good = rows.array();
  check_refused(model.get(), {}, "'x' is missing");
  check_refused(model.get(), {good, good}, "given twice");
  ob_array bad = good;
  bad.name = "z";
  check_refused(model.get(), {bad}, "no input 'z'; it takes x");
  bad.name = nullptr;
  check_refused(model.get(), {bad}, "no input ''");
  bad = good;
  bad.dtype = OB_INT32;
  check_refused(model.get(), {bad}, "element type 3");
  bad = good;
  bad.rank = 1;
  check_refused(model.get(), {bad}, "shape [2]");
  bad = good;
  bad.bytes -= 4;
  check_refused(model.get(), {bad}, "20 bytes of data, its shape needs 24");
  bad = good;
  bad.data = nullptr;
  check_refused(model.get(), {bad}, "24 bytes");
  check_refused(model.get(), {nine.array()}, "shape [9, 3]; the model takes [x.0 (1 to 8), 3]");
  check_refused(model.get(), {seven.array()}, "compiled for other sizes");
  CHECK(runs_right(model.get(), rows));
}

TEST(a_file_that_is_none_is_refused) {
  for (const std::string& bytes : {std::string(), std::string("OBMODEL"), std::string(1000, 'x')}) {
    const OpenModel model(bytes);
    CHECK(model.status() == OB_INVALID_ARGUMENT);
    CHECK(contains(model.text(), "not a model written by outboard.export"));
  }
  ob_model model = nullptr;
  CHECK(ob_model_open("/nowhere/at all", nullptr, 0, &model) == OB_INVALID_ARGUMENT);
  CHECK(contains(ob_runner_error(), "No such file"));
  CHECK(ob_model_open("/tmp", nullptr, 0, &model) == OB_INVALID_ARGUMENT);
  CHECK(ob_model_open(nullptr, nullptr, 0, &model) == OB_INVALID_ARGUMENT);
}

TEST(a_model_for_another_device_is_refused) {
  ModelParts parts = scale_columns();
  parts.dialect = "cuda-c";
  const OpenModel other(parts.bytes());
  CHECK(other.status() == OB_UNSUPPORTED);
  CHECK(contains(other.text(), "'cuda-c'"));
  const TemporaryFile file(scale_columns().bytes());
  ob_model model = nullptr;
  CHECK(ob_model_open(file.path(), nullptr, 99, &model) == OB_INVALID_ARGUMENT);
  CHECK(contains(ob_runner_error(), "invalid device index 99"));
}

TEST(a_model_that_needs_sub_groups_wants_a_device_with_them) {
  const OpenModel usual(scale_columns().bytes());
  CHECK(usual.status() == OB_OK);
  ModelParts parts = scale_columns();
  parts.needs = ModelFile::kSubGroups;
  const OpenModel demanding(parts.bytes());
  const bool has = Runtime::get().device(0).properties().sub_group_size > 1;
  CHECK((demanding.status() == OB_OK) == has);
  CHECK(has || contains(demanding.text(), "sub-groups"));
}

TEST(programs_that_cannot_be_built_are_reported) {
  ModelParts parts = scale_columns();
  PlanParts plan;
  plan.inputs = {Plan::kTensorInput, Plan::kTensorInput};
  plan.buffers = 2;
  plan.source = "no program";
  plan.entries = {"f"};
  plan.outputs = {PlanWriter().u8(Output::kInput).u32(0)};
  parts.plan = plan.bytes();
  parts.outputs = {ModelParts::argument("same", {kBatch, {Size::kFixed, 3}})};
  CHECK(OpenModel(parts.bytes()).status() == OB_BUILD_FAILED);
}

namespace {

/// A binary with what it is a binary of, as the cache of programs wants it.
std::string sealed(const ProgramSpec& program, const std::string& device_key, const std::string& binary) {
  const std::string key = sha256_hex(program.source + '\0' + program.options + '\0' + device_key);
  const std::string body = key + '\n' + binary;
  return sha256_hex(body) + '\n' + body;
}

}  // namespace

TEST(binaries_of_this_device_are_used_and_bad_ones_are_not) {
  Device& device = fixture::device();
  ModelParts parts = scale_columns();
  const auto builds = [&] { return fixture::calls("program_build"); };
  const auto change_source = [&](const std::string& comment) {  // a program that this process has not built
    std::string bytes = parts.plan;
    const std::string old = "long i = get_global_id(0);", fresh = "long i=get_global_id(0);" + comment;
    const size_t at = bytes.find(old);
    CHECK(at != std::string::npos && old.size() == fresh.size());
    parts.plan = PlanWriter().bytes(bytes.replace(at, old.size(), fresh).substr(36)).finish();
  };
  change_source(";;");
  const ProgramSpec program = parse(parts.bytes()).plan->programs.at(0);
  ob_program built = nullptr;
  CHECK(device.driver().program_build(device.handle(), program.source.c_str(), "", &built) == OB_OK);
  size_t size = 0;
  CHECK(device.driver().program_binary(built, nullptr, &size) == OB_OK);
  parts.binaries[0].resize(size);
  CHECK(device.driver().program_binary(built, parts.binaries[0].data(), &size) == OB_OK);
  device.driver().program_release(built);
  parts.device_key = device.properties().cache_key;
  parts.binaries[0] = sealed(program, parts.device_key, parts.binaries[0]);
  uint64_t before = builds();
  CHECK(runs_right(OpenModel(parts.bytes()).get(), Rows(2)));
  CHECK_EQ(builds(), before);

  parts = scale_columns();
  change_source(" ;");
  parts.binaries[0] = "no binary";
  parts.device_key = device.properties().cache_key;
  before = builds();
  CHECK(runs_right(OpenModel(parts.bytes()).get(), Rows(2)));
  CHECK_EQ(builds(), before + 1);
}

TEST(weights_may_be_in_another_file) {
  fixture::device();
  const float values[3] = {1, 10, 100};
  const std::string content = "12345678" + std::string(reinterpret_cast<const char*>(values), sizeof(values));
  const TemporaryFile weights(content), changed("12345678............");
  ModelParts parts = scale_columns();
  parts.external = content;
  parts.weights_file = std::string(weights.path()).substr(5);  // beside the model, in /tmp
  const TemporaryFile file(parts.bytes());
  ob_model model = nullptr;
  CHECK(ob_model_open(file.path(), nullptr, 0, &model) == OB_OK);
  CHECK(runs_right(model, Rows(3)));
  ob_model_close(model);
  CHECK(ob_model_open(file.path(), weights.path(), 0, &model) == OB_OK);
  ob_model_close(model);
  CHECK(ob_model_open(file.path(), changed.path(), 0, &model) == OB_INVALID_ARGUMENT);
  CHECK(contains(ob_runner_error(), "other contents"));
  CHECK(ob_model_open(file.path(), "/nowhere", 0, &model) == OB_INVALID_ARGUMENT);
}

TEST(failures_of_the_device_are_reported_and_leave_the_model_usable) {
  const OpenModel model(scale_columns().bytes());
  const Rows rows(4);
  CHECK(runs_right(model.get(), rows));
  for (const char* function : {"copy", "launch"}) {
    fixture::fail(function, 1, OB_INTERNAL);
    check_refused(model.get(), {rows.array()}, "", OB_INTERNAL);
    fixture::fail(function, 0, OB_OK);
    CHECK(runs_right(model.get(), rows));
  }
}

TEST(threads_share_a_model) {
  const OpenModel model(scale_columns().bytes());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int64_t t = 1; t <= 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) wrong += runs_right(model.get(), Rows(t)) ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
}

TEST(what_kernels_complain_of_is_reported) {
  PlanParts plan;
  plan.inputs = {Plan::kTensorInput, Plan::kTensorInput};
  plan.buffers = 2;
  plan.source =
      "__kernel void f(__global const float* x, __global int* failed) {"
      " if (x[0] == 5) *failed = 5; if (x[0] == 1) *failed = 6; }";
  plan.entries = {"f"};
  plan.assertions = {wire::assertion(5, Assertions::kRuntimeError, "five is wrong"),
                     wire::assertion(6, Assertions::kIndexError, "index out of range")};
  plan.steps = {wire::launch(0, wire::number(1), {wire::pointer(0), wire::assertions()})};
  plan.outputs = {PlanWriter().u8(Output::kInput).u32(0)};
  ModelParts parts = scale_columns();
  parts.plan = plan.bytes();
  parts.outputs = {ModelParts::argument("same", {kBatch, {Size::kFixed, 3}})};
  const OpenModel model(parts.bytes());
  CHECK_EQ(model.text(), "");
  Rows rows(1);
  rows.data[0] = 5;
  check_refused(model.get(), {rows.array()}, "five is wrong");
  rows.data[0] = 1;
  check_refused(model.get(), {rows.array()}, "index out of range");
  rows.data[0] = 0;
  const ob_array x = rows.array();
  ob_results results;
  CHECK(ob_model_run(model.get(), &x, 1, &results) == OB_OK);
  ob_results_release(results);
}

int main() {
  unsetenv("OUTBOARD_CACHE_DIR");  // tests count what is built
  return check::run_all();
}
