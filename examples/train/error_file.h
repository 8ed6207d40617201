/* error_file.h - tells `tern run` why this rank fails. */
#ifndef TERN_EXAMPLES_TRAIN_ERROR_FILE_H
#define TERN_EXAMPLES_TRAIN_ERROR_FILE_H

/* Writes `text` as the "message" of the file that TORCHELASTIC_ERROR_FILE names, if it is set. If all ranks
 * fail alike, only one prints the error, but another may be the first to exit: so every rank writes the file.
 */
void error_file_write(const char *text);

#endif
