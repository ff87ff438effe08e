# millrace_module(NAME SOURCES a.cpp b.cpp [LINK libs and millrace::modules] [TORCH])
#   One static library per module: headers in include/millrace/NAME, sources beside the CMakeLists.txt that calls it.
# millrace_test(NAME SOURCES a_test.cpp [LINK ...] [LABELS unit] [RANKS 1 2 4] [TIMEOUT 400] [TORCH])
#   One GoogleTest program; with RANKS, one ctest entry per number of MPI ranks.
set(MILLRACE_TEST_DATA ${CMAKE_SOURCE_DIR}/tests/golden)

# Reading headers, LibTorch's above all, and writing out their templates costs more than compiling most files: a few files of a
# target share it. scripts/tidy, which asks for single files, turns it off.
option(MILLRACE_UNITY "Compile a few files of a target at once" ON)
set(CMAKE_UNITY_BUILD ${MILLRACE_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)

# Headers that take longer to read than most files to compile are compiled once, into three of these that all targets reuse:
# torch_header (25 s a file otherwise), plain_header for what does without LibTorch, test_header for its tests. Of LibTorch only
# tensors, autograd and modules: templates that a header leaves pending are instantiated again in every file, 10 s for
# <torch/torch.h>.
function(millrace_precompile name)
  cmake_parse_arguments(ARG "" "" "LINK;HEADERS" ${ARGN})
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/${name}.cpp CONTENT "// Carries a precompiled header.\n")
  add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/${name}.cpp)
  target_link_libraries(${name} PUBLIC ${ARG_LINK} fmt::fmt nlohmann_json::nlohmann_json)
  target_include_directories(${name} SYSTEM PRIVATE ${Boost_INCLUDE_DIRS})  # not its macros: few targets have them
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS} <nlohmann/json.hpp> <fmt/format.h> <boost/icl/interval_set.hpp> <filesystem>)
endfunction()

function(millrace_use_header target header)
  target_precompile_headers(${target} REUSE_FROM ${header})
  target_link_libraries(${target} PRIVATE fmt::fmt nlohmann_json::nlohmann_json)  # their macros are part of the header
  # Programs would be compiled with -fPIE, and the precompiled header refused.
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE -fPIC)
endfunction()

function(millrace_use_torch target)
  target_link_libraries(${target} PUBLIC Torch::torch)
  set_target_properties(${target} PROPERTIES WITH_OPENMP ON)
  millrace_use_header(${target} torch_header)
endfunction()

millrace_precompile(plain_header)
if(MILLRACE_TORCH)
  millrace_precompile(torch_header LINK Torch::torch
    HEADERS <torch/types.h> <torch/autograd.h> <torch/utils.h> <torch/nn/module.h> <torch/nn/pimpl.h>)
  set_target_properties(torch_header PROPERTIES WITH_OPENMP ON)
endif()
if(MILLRACE_TESTS)
  millrace_precompile(test_header LINK GTest::gmock HEADERS <gtest/gtest.h> <gmock/gmock.h>)
  target_compile_options(test_header PRIVATE $<$<CONFIG:Release>:-O0>)
endif()

function(millrace_module name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;LINK" ${ARGN})
  if(ARG_TORCH AND NOT MILLRACE_TORCH)
    return()
  endif()
  add_library(millrace_${name} STATIC ${ARG_SOURCES})
  add_library(millrace::${name} ALIAS millrace_${name})
  target_include_directories(millrace_${name} PUBLIC ${CMAKE_SOURCE_DIR}/include PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(millrace_${name} PUBLIC ${ARG_LINK})
  if(ARG_TORCH)
    millrace_use_torch(millrace_${name})
  else()
    millrace_use_header(millrace_${name} plain_header)
  endif()
endfunction()

# Read by the sanitizers of the debug and tsan presets, by nothing else.
set(millrace_test_environment
  "ASAN_OPTIONS=detect_stack_use_after_return=1" "LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/sanitizers/lsan.supp"
  "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/sanitizers/tsan.supp:second_deadlock_stack=1")
# Open MPI unloads its parts before leaks are looked for, so that what they keep has no name to suppress it by.
set(millrace_mpi_test_environment ${millrace_test_environment} "ASAN_OPTIONS=detect_stack_use_after_return=1:detect_leaks=0"
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none)

# What is tested is in libraries: tests themselves are compiled as fast as can be, which is -O1 beside LibTorch's header.
# Of GCC 13 and later -O1 leaves out what belongs to x86-64 there, and takes no precompiled header that was made with it.
set(millrace_test_optimization -O1)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13 AND CMAKE_SYSTEM_PROCESSOR STREQUAL x86_64)
  list(APPEND millrace_test_optimization -munroll-only-small-loops -mvzeroupper)
endif()
function(millrace_compile_as_test target torch)
  if(torch)
    target_compile_options(${target} PRIVATE "$<$<CONFIG:Release>:${millrace_test_optimization}>")
    millrace_use_torch(${target})
  else()
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O0>)
    millrace_use_header(${target} test_header)
  endif()
endfunction()

string(MD5 millrace_build ${CMAKE_BINARY_DIR})
string(SUBSTRING ${millrace_build} 0 8 millrace_build)  # two builds, perhaps of two users, may be tested at once
set(millrace_mpi_folder /tmp/millrace-mpi-${millrace_build})  # a short path: sockets are made in it

function(millrace_test name)
  cmake_parse_arguments(ARG "TORCH" "TIMEOUT" "SOURCES;LINK;LABELS;RANKS" ${ARGN})
  if(ARG_TORCH AND NOT MILLRACE_TORCH)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 400)  # of 45 s that the longest take: a machine may be slow, or busy
  endif()
  if(MILLRACE_SANITIZE)
    math(EXPR ARG_TIMEOUT "8 * ${ARG_TIMEOUT}")
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(ARG_TORCH)
    list(APPEND ARG_LABELS torch)  # what scripts/test_processors repeats
  endif()
  add_executable(${name} ${ARG_SOURCES})
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME module)  # tests of a module see its private headers
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests ${CMAKE_SOURCE_DIR}/src/${module})
  target_compile_definitions(${name} PRIVATE MILLRACE_TEST_DATA="${MILLRACE_TEST_DATA}")
  target_link_libraries(${name} PRIVATE ${ARG_LINK})
  millrace_compile_as_test(${name} ${ARG_TORCH})
  if(ARG_RANKS)
    target_link_libraries(${name} PRIVATE millrace_mpi_test_main GTest::gtest)
    foreach(ranks ${ARG_RANKS})
      # Session files of its own: two mpirun of one user that start at once may fail to make the folder that they share.
      add_test(NAME ${name}.${ranks} COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe --bind-to none
        --mca orte_tmpdir_base ${millrace_mpi_folder}/${name}.${ranks} -n ${ranks} $<TARGET_FILE:${name}>)
      set_tests_properties(${name}.${ranks} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} PROCESSORS ${ranks}
        ENVIRONMENT "${millrace_mpi_test_environment}" FIXTURES_REQUIRED mpi_folder)
    endforeach()
  else()
    target_link_libraries(${name} PRIVATE GTest::gmock_main)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
      ENVIRONMENT "${millrace_test_environment}")
  endif()
endfunction()
