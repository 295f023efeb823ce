// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Included before every C++ file (CMakeLists.txt). GCC 12 gave `std::condition_variable::wait` a second version,
/// GLIBCXX_3.4.30, which differs from the first only in being `noexcept`. By the first, what is built here runs with
/// the libstdc++ of GCC 11 as well: on systems of glibc 2.34, such as RHEL 9.
#ifdef __cplusplus
#include <cstddef>
#if defined(__x86_64__) && defined(_GLIBCXX_RELEASE) && _GLIBCXX_RELEASE >= 12
__asm__(
    ".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE, "
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
#endif
#endif
