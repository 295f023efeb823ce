// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "check.h"
#include "opencl/pocl_binary.h"

/// What is read from PoCL's binaries, and that damaged ones are refused.
using outboard::opencl::PoclBinary;

namespace {

template <typename Number>
void put(std::string& text, Number number) {
  char bytes[sizeof(number)];
  std::memcpy(bytes, &number, sizeof(number));
  text.append(bytes, sizeof(number));
}

void put_text(std::string& text, const std::string& value) {
  put(text, static_cast<uint32_t>(value.size()));
  text += value;
}

std::string files_of(const std::string& kernel, const std::string& library) {
  std::string files;
  put_text(files, "/" + kernel + "/64-1-1/" + kernel + ".so");
  put_text(files, "other");
  put_text(files, "/" + kernel + "/0-0-0/" + kernel + ".so");
  put_text(files, library);
  return files;
}

std::string record_of(const std::string& kernel, const std::string& library) {
  const std::string files = files_of(kernel, library);
  std::string rest;
  put(rest, static_cast<uint64_t>(files.size()));
  put(rest, uint32_t{5});
  put_text(rest, kernel);
  put(rest, uint32_t{3});  // arguments
  put(rest, uint32_t{2});  // arrays in local memory
  for (const uint64_t size : {1, 2, 3}) put(rest, size);
  for (const uint64_t size : {1024, 64}) put(rest, size);
  rest += "infos" + files;
  std::string record;
  put(record, static_cast<uint64_t>(rest.size() + sizeof(uint64_t)));
  return record + rest;
}

std::string binary(uint32_t format = 9) {
  std::string text("poclbin\0", 8);
  put(text, uint64_t{42});
  put(text, format);
  put(text, uint32_t{2});
  text.append(3 * sizeof(uint32_t), '\1');
  text.append(41, 'A');
  put(text, uint64_t{7});
  text += "bitcode";
  return text + record_of("first", "ELF one") + record_of("second", "ELF two");
}

}  // namespace

TEST(kernels_have_their_parts) {
  const std::string text = binary();
  const auto kernels = PoclBinary::kernels(text);
  CHECK_EQ(kernels.size(), 2u);
  CHECK_EQ(kernels[0].name, std::string("first"));
  CHECK_EQ(std::string(kernels[0].library), std::string("ELF one"));
  CHECK_EQ(std::string(kernels[1].library), std::string("ELF two"));
  CHECK_EQ(kernels[1].arguments, 3u);
  CHECK(kernels[1].locals == (std::vector<uint64_t>{1024, 64}));
  CHECK_EQ(kernels[1].required_local_size[2], 3u);
}

TEST(another_format_has_no_kernels) {
  CHECK(PoclBinary::kernels(binary(8)).empty());
  CHECK(PoclBinary::kernels("").empty());
  CHECK(PoclBinary::kernels("\177ELF and so on, longer than a header would be if it were one").empty());
}

TEST(a_binary_that_is_cut_short_has_no_kernels) {
  const std::string text = binary();
  for (size_t bytes = 0; bytes < text.size(); ++bytes) CHECK(PoclBinary::kernels(text.substr(0, bytes)).empty());
}

TEST(a_library_that_is_cut_short_is_not_whole) {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::string image{std::istreambuf_iterator<char>(file), {}};
  CHECK(outboard::opencl::is_whole_library(image));
  for (const size_t kept : {size_t{0}, size_t{8}, sizeof(uint64_t) * 8, image.size() / 2, image.size() - 1}) {
    CHECK(!outboard::opencl::is_whole_library(std::string_view(image).substr(0, kept)));
  }
  CHECK(!outboard::opencl::is_whole_library(std::string(image.size(), 'x')));
}

TEST(damaged_numbers_are_survived) {
  const std::string text = binary();
  for (size_t i = 0; i < text.size(); ++i) {
    for (const char value : {'\0', '\1', '\x7f', '\xff'}) {
      std::string damaged = text;
      damaged[i] = value;
      for (const auto& kernel : PoclBinary::kernels(damaged)) CHECK(kernel.library.size() <= damaged.size());
    }
  }
}

int main() { return check::run_all(); }
