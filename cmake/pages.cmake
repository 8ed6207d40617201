# The documents, as they are installed.
file(GLOB pages RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/docs/*.md ${PROJECT_SOURCE_DIR}/*.md)
set(installed_pages ${pages})
list(TRANSFORM installed_pages PREPEND ${PROJECT_BINARY_DIR}/installed/)
list(TRANSFORM pages PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE page_sources)
file(RELATIVE_PATH include_from_doc ${CMAKE_INSTALL_FULL_DOCDIR} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
add_custom_command(OUTPUT ${installed_pages}
                   COMMAND ${CMAKE_COMMAND} "-DPAGES=${pages}" -DSOURCE=${PROJECT_SOURCE_DIR} -DOUT=${PROJECT_BINARY_DIR}/installed -DINCLUDE=${include_from_doc}
                           -P ${PROJECT_SOURCE_DIR}/cmake/installed_pages.cmake
                   DEPENDS ${page_sources} ${PROJECT_SOURCE_DIR}/cmake/installed_pages.cmake VERBATIM)
add_custom_target(tern_installed_pages ALL DEPENDS ${installed_pages})
install(DIRECTORY ${PROJECT_BINARY_DIR}/installed/ DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The man pages and the shells' completions, which the command itself prints from its tables of options. Where the command cannot run,
# because it is built for another machine, they are left out.
set(TERN_PAGES)
if(TARGET tern_cli AND (NOT CMAKE_CROSSCOMPILING OR CMAKE_CROSSCOMPILING_EMULATOR))
  set(folder ${PROJECT_BINARY_DIR}/pages)
  file(MAKE_DIRECTORY ${folder})
  foreach(name "" run new inspect convert tokenize generate info bench completion man)
    string(JOIN "-" page tern ${name})
    list(APPEND TERN_PAGES ${folder}/${page}.1)
    add_custom_command(OUTPUT ${folder}/${page}.1 COMMAND tern_cli man ${name} > ${folder}/${page}.1 DEPENDS tern_cli VERBATIM)
    install(FILES ${folder}/${page}.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  endforeach()
  foreach(place "bash bash-completion/completions tern" "zsh zsh/site-functions _tern" "fish fish/vendor_completions.d tern.fish")
    separate_arguments(place)
    list(GET place 0 shell)
    list(GET place 1 in)
    list(GET place 2 file)
    list(APPEND TERN_PAGES ${folder}/${shell}/${file})
    file(MAKE_DIRECTORY ${folder}/${shell})
    add_custom_command(OUTPUT ${folder}/${shell}/${file} COMMAND tern_cli completion ${shell} > ${folder}/${shell}/${file} DEPENDS tern_cli VERBATIM)
    install(FILES ${folder}/${shell}/${file} DESTINATION ${CMAKE_INSTALL_DATADIR}/${in})
  endforeach()
  add_custom_target(tern_pages ALL DEPENDS ${TERN_PAGES})
endif()
