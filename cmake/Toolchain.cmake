# Compiler flags of every target, and the tools that make the build fast.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # pch_defines and time_macros: ccache then also caches files that use the precompiled torch header.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=mold MILLRACE_LINKS_WITH_MOLD)  # GCC knows it from 12 on, and Debian's 11
endif()
if(MOLD_PROGRAM AND MILLRACE_LINKS_WITH_MOLD)
  add_link_options(-fuse-ld=mold)
  # mold 1.10 lets the part that is made read-only begin at .tbss, which has no page of its own where it holds a byte and .text
  # ends just before a page does: one layout in 256 does not start ("cannot apply additional memory protection after relocation").
  # A thread's variable of 64 bytes in every program puts .tbss on the page behind.
  file(WRITE ${CMAKE_BINARY_DIR}/tls_alignment.cpp "alignas(64) thread_local char millrace_tls_alignment;\n")
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -c -fPIC ${CMAKE_BINARY_DIR}/tls_alignment.cpp -o ${CMAKE_BINARY_DIR}/tls_alignment.o
    COMMAND_ERROR_IS_FATAL ANY)
  string(APPEND CMAKE_EXE_LINKER_FLAGS " \"${CMAKE_BINARY_DIR}/tls_alignment.o\"")
endif()

add_compile_options(-Wall -Wextra -Wno-unused-parameter -fdiagnostics-color=always)
# No fused multiply-add but where it is asked for (src/nn/cpu). It rounds once where two operations round twice, and compilers make
# it of a * b + c wherever every processor of a kind has it (aarch64), which x86-64 does not say of itself: random numbers, fresh
# weights, schedules, learning rates and pixels have the same bits on both only without it.
add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off>)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess> -Wno-maybe-uninitialized -Wno-array-bounds -Wno-stringop-overflow)
  # A tenth of the time went into collecting what LibTorch's headers leave: not before a compiler holds 1 GB.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:--param ggc-min-heapsize=1048576>")
  # Files that share a compilation look to it like headers, whose anonymous namespaces would be a mistake.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()
# .ci/run: no warning lands. GCC 12 sees overlaps and dangling pointers in the standard library that are not there.
option(MILLRACE_WERROR "Warnings are errors" OFF)
if(MILLRACE_WERROR)
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    set(false_alarms restrict stringop-overread)
    if(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12)
      list(APPEND false_alarms dangling-pointer)
    endif()
    foreach(warning ${false_alarms})
      add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-error=${warning}>)
    endforeach()
  endif()
endif()
if(CMAKE_BUILD_TYPE STREQUAL Debug)
  set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1")
endif()
if(MILLRACE_SANITIZE)
  add_compile_options(-fsanitize=${MILLRACE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=${MILLRACE_SANITIZE})
endif()
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# NOTE [Two C++ libraries] libtorch_cpu.so carries and exports parts of an older libstdc++ (std::filesystem::remove_all among
# them), which crash when called from outside. The system's library must therefore be the first that the loader asks.
add_link_options(LINKER:--push-state,--no-as-needed -lstdc++ LINKER:--pop-state)
