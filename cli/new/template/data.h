/* data.h - the data: rows of numbers, each with the name of its class. Change data.c to read your own. */
#ifndef DATA_H
#define DATA_H

#include <tern.h>

#define CLASSES_MAX 100

typedef struct data {
    int64_t features; /* numbers in a row               */
    int classes;      /* and their names                */
    char names[CLASSES_MAX][32];
    tern_dataset *train, *test; /* four fifths, and the last fifth */
    double *mean, *deviation;   /* of each column, before it was scaled */
    float *x;                   /* what the datasets read         */
    int64_t *y;
} data;

/* Reads a file of lines "5.1,3.5,1.4,0.2,setosa", of which the first may name the columns, shuffles them (the
 * same on every rank), and scales each column to mean 0 and deviation 1. An error names the line. Close it in
 * any case. */
int data_open(data *d, const char *path, tern_error *err);
void data_close(data *d);

void data_print(const data *d);
/* Adds to `best`, beside the weights, what is needed to classify a new row: {"classes": names, "mean": ..,
 * "deviation": ..}. */
void data_describe(const data *d, tern_object *best, tern_error *err);

#endif
