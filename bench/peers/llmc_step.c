/* llmc_step.c - the training step of `tern bench step --model gpt2` in karpathy's llm.c, compiled with the
 * folder of its train_gpt2.c in the include path:
 *
 *     llmc_step CHECKPOINT TOKENS BATCH POSITIONS STEPS
 *
 * Times llm.c's forward and backward, and SGD with momentum in place of its AdamW. TOKENS has int32 numbers.
 * The loss leaves out the last position of each sequence, whose label nobody knows; llm.c's gradient includes
 * it.
 * The last line that it prints is a JSON object with keys of `tern bench step --json`. */
#define TESTING /* leaves out llm.c's own main */
#include "train_gpt2.c"

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sgd(GPT2 *model, float *momentum)
{
#pragma omp parallel for
    for (size_t i = 0; i < model->num_parameters; i++) {
        momentum[i] = 0.9f * momentum[i] + model->grads_memory[i];
        model->params_memory[i] -= 0.01f * momentum[i];
    }
}

static double loss_of(const GPT2 *model, int batch, int positions)
{
    double sum = 0;
    for (int i = 0; i < batch * positions; i++)
        sum += (i + 1) % positions ? (double)model->acts.losses[i] : 0;
    return sum / (batch * (positions - 1));
}

static double pss_mb(void)
{
    char line[256];
    long kb = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (file && fgets(line, sizeof(line), file) && sscanf(line, "Pss: %ld", &kb) != 1) continue;
    if (file) fclose(file);
    return (double)kb / 1024;
}

int main(int argc, char **argv)
{
    if (argc != 6) return 2;
    int batch = atoi(argv[3]), positions = atoi(argv[4]), steps = atoi(argv[5]), count = batch * positions;
    int *tokens = mallocCheck(count * sizeof(int)), *labels = mallocCheck(count * sizeof(int));
    double *ms = mallocCheck(steps * sizeof(double)), first = 0;
    GPT2 model;
    gpt2_build_from_checkpoint(&model, argv[1]);
    FILE *file = fopenCheck(argv[2], "rb");
    freadCheck(tokens, sizeof(int), count, file);
    fcloseCheck(file);
    for (int i = 0; i < count; i++) labels[i] = (i + 1) % positions ? tokens[i + 1] : 0;
    float *momentum = calloc(model.num_parameters, sizeof(float));
    for (int i = -1; i < steps; i++) { /* the first step is not timed */
        double began = now_ms();
        gpt2_forward(&model, tokens, labels, batch, positions);
        if (i < 0) first = loss_of(&model, batch, positions);
        gpt2_zero_grad(&model);
        gpt2_backward(&model);
        sgd(&model, momentum);
        if (i >= 0) ms[i] = now_ms() - began;
    }
    qsort(ms, steps, sizeof(double), by_value);
    printf("{\"model\": \"gpt2\", \"median_ms\": %.17g, \"min_ms\": %.17g, \"pss_mb\": %.17g, "
           "\"loss_first\": %.17g}\n",
           (ms[(steps - 1) / 2] + ms[steps / 2]) / 2, ms[0], pss_mb(), first);
    return 0;
}
