// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <exception>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

/// A test harness in one header: TEST(name) { ... } with CHECK, CHECK_EQ and CHECK_THROWS; main() runs them all.
namespace check {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Test {
  const char* name;
  std::function<void()> body;
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

struct Register {
  Register(const char* name, std::function<void()> body) { tests().push_back({name, std::move(body)}); }
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  throw Failure(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

template <typename A, typename B>
void equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream message;
  message << text << ": " << a << " is not " << b;
  fail(file, line, message.str());
}

inline int run_all() {
  int failed = 0;
  for (const Test& test : tests()) {
    try {
      test.body();
      std::printf("ok   %s\n", test.name);
    } catch (const std::exception& error) {
      ++failed;
      std::printf("FAIL %s: %s\n", test.name, error.what());
    }
  }
  std::printf("%zu tests, %d failed\n", tests().size(), failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace check

#define TEST(name)                                                  \
  static void test_##name();                                        \
  static const check::Register register_##name(#name, test_##name); \
  static void test_##name()
#define CHECK(condition) \
  if (!(condition)) check::fail(__FILE__, __LINE__, #condition)
#define CHECK_EQ(a, b) check::equal((a), (b), #a " == " #b, __FILE__, __LINE__)
#define CHECK_THROWS(expression, type)                                                 \
  do {                                                                                 \
    bool thrown = false;                                                               \
    try {                                                                              \
      expression;                                                                      \
    } catch (const type&) {                                                            \
      thrown = true;                                                                   \
    }                                                                                  \
    if (!thrown) check::fail(__FILE__, __LINE__, #expression " did not throw " #type); \
  } while (false)
