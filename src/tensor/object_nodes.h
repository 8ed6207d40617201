/* object_nodes.h - the nodes of each kind, for the files that make and read them. */
#ifndef TERN_SRC_TENSOR_OBJECT_NODES_H
#define TERN_SRC_TENSOR_OBJECT_NODES_H

#include "tensor/object.h"

typedef struct scalar_node { /* bool, int, float */
    tern_object object;
    union {
        int64_t i;
        double f;
    } value;
} scalar_node;

typedef struct text_node { /* string, bytes */
    tern_object object;
    int64_t bytes;
    char data[]; /* and a 0 */
} text_node;

typedef struct list_node { /* list, tuple */
    tern_object object;
    tern_object **items;
    int64_t count, capacity;
} list_node;

typedef struct pair {
    tern_object *key, *item;
} pair;

typedef struct dict_node {
    tern_object object;
    pair *pairs;
    int64_t count, capacity;
    int64_t *index; /* hash table, see object_dict.c; NULL while there are few pairs */
    int64_t slots;
    unsigned char secret[16];
} dict_node;

typedef struct tensor_node {
    tern_object object;
    tern_tensor *tensor;
    bool is_own; /* false: the handle is the module's */
} tensor_node;

typedef struct record_node {
    tern_object object;
    tern_object *args, *state;
    char name[];
} record_node;

#endif
