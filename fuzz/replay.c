/* replay.c - main program without a fuzzer: runs a target over the given files and folders. */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static int replay_file(const char *path, size_t bytes)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = malloc(bytes + 1);
    int is_read = file && data && fread(data, 1, bytes, file) == bytes;
    if (is_read) LLVMFuzzerTestOneInput(data, bytes);
    if (file) fclose(file);
    free(data);
    return is_read;
}

static int replay(const char *path)
{
    struct stat entry;
    if (stat(path, &entry)) return 0;
    if (!S_ISDIR(entry.st_mode)) return replay_file(path, (size_t)entry.st_size);
    DIR *folder = opendir(path);
    int count = 0;
    for (struct dirent *one; folder && (one = readdir(folder));) {
        char inner[4096];
        snprintf(inner, sizeof(inner), "%s/%s", path, one->d_name);
        if (one->d_name[0] != '.') count += replay(inner);
    }
    if (folder) closedir(folder);
    return count;
}

/* Fails if there are no files at all. */
int main(int argc, char **argv)
{
    int count = 0;
    for (int i = 1; i < argc; i++) count += replay(argv[i]);
    printf("%d files\n", count);
    return count ? EXIT_SUCCESS : EXIT_FAILURE;
}
