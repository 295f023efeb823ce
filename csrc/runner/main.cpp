// SPDX-License-Identifier: Apache-2.0
// outboard-run: runs an exported model on raw files.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "outboard/runner.h"

namespace {

constexpr char kUsage[] =
    "usage: outboard-run MODEL [NAME=FILE[:SIZExSIZE...]]... [--out DIRECTORY] [--weights FILE] [--device N]\n"
    "                    [--driver LIBRARY]...\n"
    "Runs a model written by outboard.export. Each FILE holds an input as raw numbers, row-major; its sizes may be "
    "left\n"
    "out where the model leaves no choice. Results go to DIRECTORY/NAME.bin in the same form. Without inputs, prints\n"
    "what the model takes and returns.\n";

[[noreturn]] void stop(const std::string& message, int code = 1) {
  std::fprintf(stderr, "outboard-run: %s\n", message.c_str());
  std::exit(code);
}

void check(ob_status status) {
  if (status != OB_OK) stop(ob_runner_error());
}

struct Arguments {
  std::string model, out, weights;
  std::vector<std::string> inputs;
  std::vector<const char*> drivers;
  uint32_t device = 0;
};

Arguments read_arguments(int count, char** values) {
  Arguments arguments;
  for (int i = 1; i < count; ++i) {
    const std::string option = values[i];
    if (option.compare(0, 2, "--") != 0) {
      (arguments.model.empty() ? arguments.model : arguments.inputs.emplace_back()) = option;
      continue;
    }
    if (i + 1 == count) stop(kUsage, 2);
    const char* value = values[++i];
    if (option == "--out") {
      arguments.out = value;
    } else if (option == "--weights") {
      arguments.weights = value;
    } else if (option == "--driver") {
      arguments.drivers.push_back(value);
    } else if (option == "--device") {
      arguments.device = static_cast<uint32_t>(std::strtoul(value, nullptr, 10));
    } else {
      stop(kUsage, 2);
    }
  }
  if (arguments.model.empty()) stop(kUsage, 2);
  return arguments;
}

std::string size_text(int64_t least, int64_t most) {
  if (least == most) return std::to_string(least);
  return std::to_string(least) + ".." + (most == INT64_MAX ? "" : std::to_string(most));
}

void describe(const char* what, const ob_array_info& info) {
  std::printf("%s %s: element type %d, shape [", what, info.name, info.dtype);
  for (uint32_t d = 0; d < info.rank; ++d) {
    std::printf("%s%s", d == 0 ? "" : ", ", size_text(info.least[d], info.most[d]).c_str());
  }
  std::printf("]\n");
}

void describe(ob_model model) {
  ob_array_info info;
  for (uint32_t i = 0; i < ob_model_input_count(model); ++i) {
    check(ob_model_input(model, i, &info));
    describe("input", info);
  }
  for (uint32_t i = 0; i < ob_model_output_count(model); ++i) {
    check(ob_model_output(model, i, &info));
    describe("output", info);
  }
}

/// An input as the user names it, with what an `ob_array` points to.
struct InputFile {
  std::string name, data;
  std::vector<int64_t> sizes;
  ob_dtype dtype = OB_FLOAT32;

  InputFile(ob_model model, const std::string& text) {
    const size_t equals = text.find('='), colon = text.rfind(':');
    if (equals == std::string::npos) stop(kUsage, 2);
    const bool sized = colon != std::string::npos && colon > equals;
    name = text.substr(0, equals);
    read(text.substr(equals + 1, sized ? colon - equals - 1 : std::string::npos));
    complete(model, sized ? text.substr(colon + 1) : "");
  }

  ob_array array() const {
    return {name.c_str(), dtype, static_cast<uint32_t>(sizes.size()), sizes.data(), data.data(), data.size()};
  }

 private:
  void read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) stop(path + " cannot be read");
    data.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }

  void complete(ob_model model, const std::string& given) {
    for (size_t at = 0; at < given.size(); at = std::min(given.find('x', at), given.size() - 1) + 1) {
      sizes.push_back(std::strtoll(given.c_str() + at, nullptr, 10));
    }
    ob_array_info info;
    for (uint32_t i = 0; i < ob_model_input_count(model); ++i) {
      check(ob_model_input(model, i, &info));
      if (name != info.name) continue;
      dtype = info.dtype;
      if (sizes.empty()) sizes.assign(info.least, info.least + info.rank);
    }
  }
};

void write(const std::string& directory, const ob_array& array) {
  const std::string path = directory + "/" + array.name + ".bin";
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(array.data), static_cast<std::streamsize>(array.bytes));
  file.close();
  if (!file) stop(path + " cannot be written");
}

void run(ob_model model, const Arguments& arguments) {
  std::vector<InputFile> files;
  std::vector<ob_array> arrays;
  for (const std::string& text : arguments.inputs) files.emplace_back(model, text);
  for (const InputFile& file : files) arrays.push_back(file.array());
  ob_results results;
  check(ob_model_run(model, arrays.data(), static_cast<uint32_t>(arrays.size()), &results));
  for (uint32_t i = 0; i < ob_model_output_count(model); ++i) {
    ob_array array;
    check(ob_results_array(results, i, &array));
    std::printf("%s", array.name);
    for (uint32_t d = 0; d < array.rank; ++d) std::printf("%s%" PRId64, d == 0 ? " " : "x", array.sizes[d]);
    std::printf("\n");
    if (!arguments.out.empty()) write(arguments.out, array);
  }
  ob_results_release(results);
}

}  // namespace

int main(int count, char** values) {
  const Arguments arguments = read_arguments(count, values);
  check(ob_runner_start(arguments.drivers.data(), static_cast<uint32_t>(arguments.drivers.size())));
  ob_model model;
  const char* weights = arguments.weights.empty() ? nullptr : arguments.weights.c_str();
  check(ob_model_open(arguments.model.c_str(), weights, arguments.device, &model));
  if (arguments.inputs.empty() && ob_model_input_count(model) != 0) {
    describe(model);
  } else {
    run(model, arguments);
  }
  ob_model_close(model);
  return 0;
}
