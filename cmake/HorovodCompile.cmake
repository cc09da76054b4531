# How every target of the core is compiled.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

# The loops of the reduction kernels vectorise at -O3 only. No -march=native: the kernels choose
# their instruction set at run time, so one binary serves every machine.
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
# For the sanitizers: assertions on, and fast enough to run every test.
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1")

find_package(Threads REQUIRED)

add_library(hvd_compile INTERFACE)
# A contracted multiply-add rounds once where the source rounds twice; results must not depend on
# whether the compiler found one.
target_compile_options(hvd_compile INTERFACE -ffp-contract=off -Wall -Wextra -Wnon-virtual-dtor)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # -Wrestrict takes the sum of two strings for an overlapping copy in GCC 12.
  target_compile_options(hvd_compile INTERFACE -Wshadow=local -Wno-restrict)
endif()
if(HVD_WARNINGS_AS_ERRORS)
  target_compile_options(hvd_compile INTERFACE -Werror)
endif()
if(HVD_SANITIZE)
  target_compile_options(hvd_compile INTERFACE -fsanitize=${HVD_SANITIZE} -fno-omit-frame-pointer
                                               -fno-sanitize-recover=all)
  target_link_options(hvd_compile INTERFACE -fsanitize=${HVD_SANITIZE})
endif()
target_link_libraries(hvd_compile INTERFACE Threads::Threads)

# Saves a quarter of a build's time, and hides an #include that is missing: so the package is built
# without, and the sanitized builds, which come after it, with.
function(hvd_precompile target)
  if(HVD_PRECOMPILE)
    target_precompile_headers(${target} PRIVATE <algorithm> <array> <atomic> <chrono> <condition_variable>
      <deque> <functional> <map> <memory> <mutex> <optional> <random> <set> <span> <sstream> <string>
      <string_view> <thread> <unordered_map> <utility> <vector> ${ARGN})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # In a precompiled header GCC 12 takes moves of strings for accesses out of bounds.
      target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
    endif()
  endif()
endfunction()
