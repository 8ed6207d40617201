# Marks the comments of a header for Doxygen: the first one is the file's, one at a line's start belongs to what follows, and one after code
# to what stands before it. A line between dashes begins a group of functions.
1s|^/\* tern\.h - \(.*\)|/** @mainpage The functions of tern\n * The [list of headers](files.html) says what each one is for; `<tern.h>` \1|
1s|^/\* [a-z0-9_]*\.h - \(.*\)|/** @file\n * \1|
s|^/\* ---- *\(.*[^ -]\) *-* *\*/$|/** @name \1 */|
s|^/\* |/** |
s|\([;,] *\)/\* |\1/**< |
