# The end of configuring: what this build found, and the apt line for what it does without.
file(STRINGS ${DNNL_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h dnnl REGEX "define DNNL_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE "[^0-9;]" "" dnnl "${dnnl}")
list(JOIN dnnl "." dnnl)

# summary_row(NAME CONDITION TEXT): TEXT where CONDITION is true, else "no".
macro(summary_row name condition text)
  set(value no)
  if(${condition})
    set(value "${text}")
  endif()
  message(STATUS "  ${name} ${value}")
endmacro()

message(STATUS "tern ${PROJECT_VERSION}: ${CMAKE_BUILD_TYPE}, ${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}")
summary_row("sanitizer " TERN_SANITIZE "${TERN_SANITIZE}")
summary_row("oneDNN    " DNNL_LIBRARY "${dnnl}")
summary_row("OpenMP    " TERN_OPENMP "${OpenMP_C_VERSION}")
summary_row("pictures  " CAIRO_FOUND "cairo ${CAIRO_VERSION}")
summary_row("Fortran   " CMAKE_Fortran_COMPILER "the example of examples/fortran")
summary_row("tests     " TERN_TESTS "yes")
if(TERN_ABSENT)
  message(STATUS "  for the rest: apt install ${TERN_ABSENT}")
endif()
