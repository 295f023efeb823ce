// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "check.h"
#include "opencl/declarations.h"

/// Which of the header's declarations a program gets.
using outboard::opencl::Declarations;

namespace {

const char* const kHeader =
    "#ifndef _OPENCL_H_\n"
    "#define _OPENCL_H_\n"
    "#include \"opencl-c-base.h\"\n"
    "#if defined(A) && \\\n"
    "    defined(B)\n"
    "float __ovld exp(float); // not log(float);\n"
    "float2 __ovld exp(float2);\n"
    "#endif // defined(A) && \\\n"
    "    defined(B)\n"
    "/** float sin(float); */\n"
    "void __ovld atomic_store(volatile __global int *object,\n"
    "                         int desired);\n"
    "float __ovld log(float);\n"
    "typedef int kept;\n"
    "#endif //_OPENCL_H_\n";

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST(only_what_is_used_is_declared) {
  const Declarations declarations{std::string(kHeader)};
  CHECK(!declarations.empty());
  const std::string text = declarations.prepend("kernel void k() { y = exp(x); }\n");
  CHECK(has(text, "exp(float);") && has(text, "exp(float2);"));
  CHECK(has(text, "typedef int kept;"));
  CHECK(!has(text, "log(float)") && !has(text, "sin(float)") && !has(text, "atomic_store"));
  CHECK(has(declarations.prepend("atomic_store(p, 1);"), "int desired);"));
}

TEST(parts_of_names_are_no_names) {
  const Declarations declarations{std::string(kHeader)};
  CHECK(!has(declarations.prepend("my_exp(x); exp2(x); log_1(x);"), "float"));
}

TEST(conditions_stay_whole) {
  const std::string text = Declarations{std::string(kHeader)}.prepend("");
  size_t depth = 0;
  for (size_t i = text.find('#'); i != std::string::npos; i = text.find('#', i + 1)) {
    if (text.compare(i, 3, "#if") == 0) ++depth;
    if (text.compare(i, 6, "#endif") == 0) --depth;
  }
  CHECK_EQ(depth, 0u);
  CHECK(!has(text, "#include"));
}

TEST(the_source_keeps_its_line_numbers) {
  CHECK(has(Declarations{std::string(kHeader)}.prepend("a\nb"), "#line 1\na\nb"));
}

TEST(an_unknown_header_is_left_alone) {
  CHECK(Declarations{std::string()}.empty());
  CHECK(Declarations{std::string("#pragma once\nfloat exp(float);\n")}.empty());
}

int main() { return check::run_all(); }
