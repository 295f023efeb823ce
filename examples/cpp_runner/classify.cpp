// SPDX-License-Identifier: Apache-2.0
// Runs the model of export_model.py, in batches of two sizes, and compares with what Python computed, bit by bit.
// usage: classify DIRECTORY
#include <outboard/runner.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

constexpr int64_t kPixels = 16 * 16, kClasses = 10;

void check(ob_status status) {
  if (status == OB_OK) return;
  std::fprintf(stderr, "%s\n", ob_runner_error());
  std::exit(1);
}

std::vector<float> read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

/// The scores of `count` images.
std::vector<float> classify(ob_model model, const float* images, int64_t count) {
  const int64_t sizes[4] = {count, 1, 16, 16};
  const ob_array input = {"images", OB_FLOAT32, 4,
                          sizes,    images,     static_cast<uint64_t>(count * kPixels) * sizeof(float)};
  ob_results results;
  check(ob_model_run(model, &input, 1, &results));
  ob_array scores;
  check(ob_results_array(results, 0, &scores));
  const float* data = static_cast<const float*>(scores.data);
  std::vector<float> values(data, data + scores.bytes / sizeof(float));
  ob_results_release(results);
  return values;
}

}  // namespace

int main(int count, char** values) {
  if (count != 2) {
    std::fprintf(stderr, "usage: %s DIRECTORY\n", values[0]);
    return 2;
  }
  const std::string directory = values[1];
  const std::vector<float> images = read(directory + "/images.bin"), expected = read(directory + "/expected.bin");
  const auto total = static_cast<int64_t>(images.size()) / kPixels;

  ob_model model;
  check(ob_runner_start(nullptr, 0));
  check(ob_model_open((directory + "/model.obm").c_str(), nullptr, 0, &model));
  const std::vector<float> scores = classify(model, images.data(), total);
  const std::vector<float> one = classify(model, images.data(), 1);
  ob_model_close(model);

  for (int64_t i = 0; i < total; ++i) {
    const float* row = scores.data() + i * kClasses;
    std::printf("image %d: class %d\n", static_cast<int>(i),
                static_cast<int>(std::max_element(row, row + kClasses) - row));
  }
  const bool equal = scores.size() == expected.size() && one.size() == static_cast<size_t>(kClasses) &&
                     std::memcmp(scores.data(), expected.data(), expected.size() * sizeof(float)) == 0;
  std::printf(equal ? "equal to Python's scores, bit by bit\n" : "NOT equal to Python's scores\n");
  return equal ? 0 : 1;
}
