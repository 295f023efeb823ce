// SPDX-License-Identifier: Apache-2.0
// Faults that the sanitizers have to find, in a library that Python loads, or they would find nothing else either.
#include <cstring>
#include <thread>

namespace {
int number = 0;
int* volatile memory = nullptr;
}  // namespace

extern "C" {

/// Two threads write a number, and nothing orders them.
void race() {
  std::thread other([] { number = 1; });
  number = 2;
  other.join();
}

/// Reads behind an array.
int beyond() {
  memory = new int[3]{};
  const int value = memory[number + 3];
  delete[] memory;
  return value;
}

/// Adds one to the largest number.
int overflow(int largest) { return largest + 1; }
}
