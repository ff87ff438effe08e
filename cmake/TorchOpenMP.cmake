# torch_openmp: the OpenMP library of the LibTorch in torch_dir, which this program shares: a process must have but one.
# A wheel carries it. A LibTorch that was built from source, such as Spack's, is linked with the compiler's.
file(GLOB torch_openmp ${torch_dir}/lib/libgomp*.so*)
list(LENGTH torch_openmp openmp_count)
if(openmp_count EQUAL 0)
  execute_process(COMMAND ${CMAKE_OBJDUMP} -p ${torch_dir}/lib/libtorch_cpu.so OUTPUT_VARIABLE torch_needs
    COMMAND_ERROR_IS_FATAL ANY)
  if(torch_needs MATCHES "NEEDED +libgomp\\.so")
    find_package(OpenMP REQUIRED COMPONENTS CXX)
    set(torch_openmp ${OpenMP_gomp_LIBRARY})
    set(openmp_count 1)
  endif()
endif()
if(NOT openmp_count EQUAL 1)
  message(FATAL_ERROR "LibTorch has to carry one libgomp in ${torch_dir}/lib, or to be linked with the compiler's, which this program then shares: found ${openmp_count} (${torch_openmp}). Is it built with another OpenMP?")
endif()
