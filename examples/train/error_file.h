/* error_file.h - why a rank fails, for the report of `tern run`. */
#ifndef TERN_EXAMPLES_TRAIN_ERROR_FILE_H
#define TERN_EXAMPLES_TRAIN_ERROR_FILE_H

/* As the "message" of the file that TORCHELASTIC_ERROR_FILE names, if it does: of ranks that fail alike one
 * speaks for all on stderr, but another may be the first to end. */
void error_file_write(const char *text);

#endif
