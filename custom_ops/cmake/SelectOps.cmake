# Builds the kernels of some composites only.
#
#   -DCOREAI_OPS_ONLY="rms_norm;rope"                     names of composites
#   -DCOREAI_OPS_CONFIG=path/to/required_operators.config  those of the domain ai.coreai in a file
#                                                         of `coreai-onnx required-ops`
#
#   coreai_select_ops(<target>)
#
# defines COREAI_SELECTED_OPS for ops/op_list.cc, with the header selected_ops.h. The linker then
# drops what no selected op uses. A name without a kernel is an error.

set(COREAI_OPS_ONLY "" CACHE STRING "Composites whose kernels are built; empty for all")
set(COREAI_OPS_CONFIG "" CACHE FILEPATH "required_operators.config that names the composites")

# The names in the lines "ai.coreai;1;rms_norm,rope.interleaved" of a file, without variants.
function(coreai_ops_in_config variable)
  if(NOT EXISTS "${COREAI_OPS_CONFIG}")
    message(FATAL_ERROR "COREAI_OPS_CONFIG: there is no file ${COREAI_OPS_CONFIG}")
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${COREAI_OPS_CONFIG}")
  file(READ "${COREAI_OPS_CONFIG}" text)
  string(REGEX MATCHALL "(^|\n)ai\\.coreai;[0-9]+;[^\n]*" lines "${text}")
  string(REGEX REPLACE "(^|[\n;])ai\\.coreai;[0-9]+;" "," names "${lines}")
  string(REGEX REPLACE "\\.[a-z0-9_]+" "" names "${names}")
  string(REGEX MATCHALL "[^,;\n]+" names "${names}")
  if(NOT names)
    message(FATAL_ERROR "COREAI_OPS_CONFIG: ${COREAI_OPS_CONFIG} names no operator of ai.coreai")
  endif()
  set(${variable} "${names}" PARENT_SCOPE)
endfunction()

# rms_norm becomes kRmsNormOp.
function(coreai_definition_of name variable)
  string(REPLACE "_" ";" words "${name}")
  set(definition k)
  foreach(word IN LISTS words)
    string(SUBSTRING "${word}" 0 1 first)
    string(SUBSTRING "${word}" 1 -1 rest)
    string(TOUPPER "${first}" first)
    string(APPEND definition "${first}${rest}")
  endforeach()
  set(${variable} "${definition}Op" PARENT_SCOPE)
endfunction()

function(coreai_select_ops target)
  set(names ${COREAI_OPS_ONLY})
  if(COREAI_OPS_CONFIG)
    coreai_ops_in_config(configured)
    list(APPEND names ${configured})
  endif()
  if(NOT names)
    return()
  endif()
  list(REMOVE_DUPLICATES names)
  file(READ "${CMAKE_CURRENT_SOURCE_DIR}/ops/op_list.h" list)
  set(selected "")
  foreach(name IN LISTS names)
    coreai_definition_of("${name}" definition)
    string(FIND "${list}" "V(${definition})" place)
    if(place EQUAL -1)
      string(REGEX MATCHALL "V\\(k[A-Za-z]+Op\\)" known "${list}")
      string(REGEX REPLACE "V\\(k([A-Za-z]+)Op\\)" "\\1" known "${known}")
      string(REGEX REPLACE "([a-z])([A-Z])" "\\1_\\2" known "${known}")
      string(TOLOWER "${known}" known)
      list(JOIN known ", " known)
      message(FATAL_ERROR "There is no kernel of ${name}; there are ${known}")
    endif()
    string(APPEND selected " V(${definition})")
  endforeach()
  list(JOIN names ", " shown)
  message(STATUS "kernels of ${shown}")
  file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/selected/selected_ops.h"
    CONTENT "#define COREAI_EACH_OP(V)${selected}\n")
  target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_BINARY_DIR}/selected")
  set_property(SOURCE ops/op_list.cc APPEND PROPERTY COMPILE_DEFINITIONS COREAI_SELECTED_OPS)
  set_property(SOURCE ops/op_list.cc APPEND PROPERTY
    OBJECT_DEPENDS "${CMAKE_CURRENT_BINARY_DIR}/selected/selected_ops.h")
endfunction()
