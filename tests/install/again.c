/* again.c - a program that loads train.c as a shared library, runs it and unloads it, three times. */
#include <dlfcn.h>
#include <stdio.h>

static int train_once(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);
    int (*train)(int, char **) = NULL;
    if (library) *(void **)&train = dlsym(library, "train");
    if (!train) return fprintf(stderr, "%s\n", dlerror()), 1;
    int status = train(1, NULL);
    return dlclose(library) || status;
}

int main(int argc, char **argv)
{
    int status = argc != 2;
    for (int times = 0; times < 3 && !status; times++) status = train_once(argv[1]);
    return status;
}
