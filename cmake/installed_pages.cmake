# Writes PAGES, paths below SOURCE, into the folder OUT as they are installed: links to headers lead to INCLUDE, relative to README.md, and
# what is in the sources only is named without a link.
foreach(page ${PAGES})
  file(READ ${SOURCE}/${page} text)
  string(REGEX REPLACE "\\]\\((\\.\\./)?include/" "](\\1${INCLUDE}/" text "${text}")
  string(REGEX REPLACE "\\[([^][]*)\\]\\((\\.\\./)?(bench|cli|cmake|fuzz|python|scripts|src|tests)/[^)]*\\)" "\\1 (in tern's sources)" text "${text}")
  file(WRITE ${OUT}/${page} "${text}")
endforeach()
