/* records.h - a test's folder, and the records of the event files in it, read without the library. */
#ifndef TERN_TESTS_REPORT_RECORDS_H
#define TERN_TESTS_REPORT_RECORDS_H

#include "check.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_ROOM 2048

static inline int make_folder(void **state)
{
    static char path[] = "/tmp/tern-board-XXXXXX";
    strcpy(path + sizeof(path) - 7, "XXXXXX");
    *state = path;
    return mkdtemp(path) ? 0 : -1;
}

static inline int remove_entry(const char *path, const struct stat *info, int flag, struct FTW *walk)
{
    (void)info;
    (void)flag;
    (void)walk;
    return remove(path);
}

static inline int remove_folder(void **state)
{
    return nftw(*state, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* Finds the last file, by name, whose name starts like this. Returns the number of such files. */
static inline int find_file(const char *folder, const char *begins, char path[PATH_ROOM])
{
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, alphasort), found = 0;
    for (int i = 0; i < count; i++) {
        if (!strncmp(entries[i]->d_name, begins, strlen(begins))) {
            snprintf(path, PATH_ROOM, "%s/%s", folder, entries[i]->d_name);
            found++;
        }
        free(entries[i]);
    }
    if (count >= 0) free(entries);
    return found;
}

static inline uint32_t masked_crc_by_bits(const uint8_t *data, size_t bytes)
{
    uint32_t crc = ~UINT32_C(0);
    for (size_t i = 0; i < 8 * bytes; i++) {
        uint32_t bit = (crc ^ (uint32_t)data[i / 8] >> i % 8) & 1;
        crc = crc >> 1 ^ (bit ? UINT32_C(0x82f63b78) : 0);
    }
    return (~crc >> 15 | ~crc << 17) + 0xa282ead8;
}

/* Returns the number of whole records in the file; -1 if a CRC is wrong. *rest is the number of bytes after
 * them. */
static inline int count_records(const char *path, size_t *rest)
{
    struct stat info;
    int file = open(path, O_RDONLY | O_CLOEXEC), count = 0;
    uint8_t *data = file >= 0 && !fstat(file, &info) ? malloc((size_t)info.st_size + 1) : NULL;
    size_t bytes = data && read(file, data, (size_t)info.st_size) == info.st_size ? (size_t)info.st_size : 0;
    if (file >= 0) close(file);
    size_t at = 0;
    while (count >= 0 && bytes - at >= 16) {
        uint64_t length;
        uint32_t head, tail;
        memcpy(&length, data + at, 8);
        memcpy(&head, data + at + 8, 4);
        if (head != masked_crc_by_bits(data + at, 8)) count = -1;
        if (count < 0 || length > bytes - at - 16) break;
        memcpy(&tail, data + at + 12 + length, 4);
        if (tail != masked_crc_by_bits(data + at + 12, length)) count = -2;
        count++;
        at += 16 + length;
    }
    *rest = bytes - at;
    free(data);
    return count;
}

/* Returns the number of records in the folder's last event file, which must end with a whole one. */
static inline int records_in(const char *folder)
{
    char path[PATH_ROOM];
    size_t rest;
    if (!find_file(folder, "events.out.tfevents.", path)) return -1;
    int count = count_records(path, &rest);
    return rest ? -1 : count;
}

#define IN_A_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

#endif
