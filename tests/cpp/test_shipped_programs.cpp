// SPDX-License-Identifier: Apache-2.0
// Binaries of programs that came with Outboard: found by their digests, in order; a file that is damaged is none.
#include <stdlib.h>

#include <cstring>
#include <filesystem>

#include "check.h"
#include "runtime/base/sha256.h"
#include "runtime/base/trusted_file.h"
#include "runtime/programs/shipped_programs.h"

using namespace outboard;

namespace {

struct Item {
  std::string digest, binary;
};

std::string number(uint64_t value) {
  std::string text(sizeof(value), '\0');
  std::memcpy(text.data(), &value, sizeof(value));
  return text;
}

std::string file_of(const std::vector<Item>& items) {
  uint64_t offset = 80 + items.size() * 80;
  std::string table, binaries;
  for (const Item& item : items) {
    table += item.digest + number(offset) + number(item.binary.size());
    binaries += item.binary;
    offset += item.binary.size();
  }
  return "OBPROG01" + sha256_hex(table) + number(items.size()) + table + binaries;
}

const std::string kA = program_digest("a", "", "driver"), kB = program_digest("b", "", "driver");
const bool kInOrder = kA < kB;
const std::string kFirst = kInOrder ? kA : kB, kSecond = kInOrder ? kB : kA;

/// What is found for a digest in a file of this content.
std::vector<std::string> found_in(const std::string& content, const std::string& digest) {
  char name[] = "/tmp/outboard-shipped-XXXXXX";
  CHECK(mkdtemp(name) != nullptr);
  const std::string path = std::string(name) + "/programs";
  CHECK(trusted::write(path, content));
  ShippedPrograms::set_file(path);
  std::vector<std::string> found = ShippedPrograms::find(digest);
  ShippedPrograms::set_file("");
  std::filesystem::remove_all(name);
  return found;
}

}  // namespace

TEST(binaries_are_found_in_the_order_in_which_to_try_them) {
  const std::string file = file_of({{kFirst, "1"}, {kFirst, ""}, {kSecond, "33"}});
  CHECK((found_in(file, kFirst) == std::vector<std::string>{"1", ""}));
  CHECK((found_in(file, kSecond) == std::vector<std::string>{"33"}));
  CHECK(found_in(file, program_digest("c", "", "driver")).empty());
  CHECK(found_in(file_of({}), kFirst).empty());
}

TEST(source_options_and_driver_name_a_program) {
  CHECK(program_digest("a", "b", "c") != program_digest("ab", "", "c"));
  CHECK(program_digest("a", "b", "c") != program_digest("a", "b", "d"));
  CHECK_EQ(program_digest("a", "b", "c").size(), size_t{64});
}

TEST(no_file_is_no_program) {
  ShippedPrograms::set_file("/nowhere/programs");
  CHECK(ShippedPrograms::find(kFirst).empty());
  ShippedPrograms::set_file("");
  CHECK(ShippedPrograms::find(kFirst).empty());
}

TEST(a_damaged_file_is_none_wherever_it_is_damaged) {
  const std::string file = file_of({{kFirst, "first"}, {kSecond, "second"}});
  const size_t without_binaries = file.size() - 11;
  for (size_t i = 0; i < without_binaries; ++i) {
    std::string damaged = file;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x41);
    CHECK(found_in(damaged, kFirst).empty());
    CHECK(found_in(file.substr(0, i), kFirst).empty());
  }
  CHECK(found_in(file.substr(0, file.size() - 1), kFirst).empty());
}

int main() { return check::run_all(); }
