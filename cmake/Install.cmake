# cmake --install BUILD --prefix PREFIX, described in docs/site-admins.md:
#   bin/                      the programs
#   share/millrace/           configs, slurm, the scripts that users call, CLIP's vocabulary; MILLRACE_HOME for batch scripts
#   share/modulefiles/        a modulefile
#   share/man/                millrace(1), which the program writes itself
#   share/bash-completion/    completion of commands, options and settings; also share/zsh/, share/fish/
#   share/doc/millrace/       README and docs
#   lib/millrace/             LibTorch, Arrow and what they load, only with the component `libraries`
# Nothing in the tree knows where it lies. Without `libraries` the programs look for LibTorch and Arrow where they were found
# when they were linked.
option(MILLRACE_BUNDLE_LIBRARIES "Install the wheels' libraries (the component `libraries`) without being asked for" OFF)
if(NOT MILLRACE_TORCH)
  return()
endif()
set(share ${CMAKE_INSTALL_DATADIR}/millrace)

# Where the programs look for the wheels' libraries: beside themselves first, then where they lie now.
set(folders torch/lib pyarrow)
if(MILLRACE_WITH_CUDA)
  file(GLOB nvidia RELATIVE ${MILLRACE_SITE_PACKAGES} ${MILLRACE_SITE_PACKAGES}/nvidia/*/lib)
  list(APPEND folders ${nvidia})
endif()
set(beside)
set(wheel_folders)
foreach(folder IN LISTS folders)
  list(APPEND beside $ORIGIN/../lib/millrace/${folder})
  file(REAL_PATH ${MILLRACE_SITE_PACKAGES}/${folder} folder)
  list(APPEND wheel_folders ${folder})
endforeach()
set(programs millrace)
if(TARGET millrace_shapes)
  list(APPEND programs millrace_shapes)  # the quickstart's data
endif()
# From the start as when they are installed: CMake makes room for a longer path by colons, and each of them says "look in the
# working folder".
set_target_properties(${programs} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH_USE_LINK_PATH ON
  INSTALL_RPATH "${beside};${wheel_folders};${CMAKE_INSTALL_RPATH}")
install(TARGETS ${programs} OPTIONAL)  # millrace_shapes is not of every list of targets

# Not with the permissions of the sources: the clone may have been made under umask 077.
set(readable OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
set(executable ${readable} OWNER_EXECUTE GROUP_EXECUTE WORLD_EXECUTE)
install(DIRECTORY configs slurm DESTINATION ${share}
  REGEX "/(submit_phases\\.sh|evaluate\\.sbatch)$" PERMISSIONS ${executable})
install(PROGRAMS scripts/supervise scripts/convert_config scripts/wandb_import DESTINATION ${share}/scripts)
install(FILES ${MILLRACE_CLIP_VOCABULARY} DESTINATION ${share})
install(FILES README.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES packaging/completion/millrace DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES packaging/completion/_millrace DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES packaging/completion/millrace.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
install(CODE "set(target \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_MANDIR}/man1/millrace.1\")
file(WRITE \"\${target}\" \"\")
execute_process(COMMAND \"$<TARGET_FILE:millrace>\" --help man OUTPUT_FILE \"\${target}\" COMMAND_ERROR_IS_FATAL ANY)
file(CHMOD \"\${target}\" PERMISSIONS ${readable})
message(STATUS \"Installing: \${target}\")")

# The modulefile finds its own prefix; where a site copies it elsewhere it falls back on the prefix of the installation.
install(CODE "set(modulefile \"${CMAKE_SOURCE_DIR}/packaging/modulefile.in\")
set(MILLRACE_VERSION ${PROJECT_VERSION})
set(target \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/modulefiles/millrace/${PROJECT_VERSION}\")
configure_file(\"\${modulefile}\" \"\$ENV{DESTDIR}\${target}\" @ONLY FILE_PERMISSIONS ${readable})
message(STATUS \"Installing: \$ENV{DESTDIR}\${target}\")")

# The wheels' own folders are kept, because their libraries look for each other along these. A CUDA build takes all of them
# (3.6 GB): cuDNN and NCCL load parts of themselves by name.
if(MILLRACE_BUNDLE_LIBRARIES)
  set(unless_asked_for)
else()
  set(unless_asked_for EXCLUDE_FROM_ALL)
endif()
install(CODE "set(program \"$<TARGET_FILE:millrace>\")
set(wheels \"${MILLRACE_SITE_PACKAGES}\")
set(target \"\${CMAKE_INSTALL_PREFIX}/lib/millrace\")  # file(INSTALL) puts DESTDIR in front
set(with_cuda ${MILLRACE_WITH_CUDA})" COMPONENT libraries ${unless_asked_for})
install(SCRIPT cmake/InstallLibraries.cmake COMPONENT libraries ${unless_asked_for})
if(NOT MILLRACE_BUNDLE_LIBRARIES)
  install(CODE "message(STATUS \"LibTorch and Arrow stay where they are: ${MILLRACE_SITE_PACKAGES}\")
message(STATUS \"  a tree that needs them no more: cmake --install BUILD --prefix PREFIX --component libraries\")")
endif()
