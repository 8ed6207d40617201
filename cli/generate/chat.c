/* chat.c - the messages of a conversation as JSON, and the template that Jinja renders. There is no library
 * for Jinja in C that is kept well, so Python's own does it: a child process gets template and messages as
 * JSON on its standard input, and answers with JSON. */
#include "chat.h"

#include "base/file.h"
#include "models/config.h"
#include "text/bytes.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static const char FUNC[] = "tern generate";

struct tern__chat {
    cJSON *
        request; /* {"template": .., "special_tokens": {..}, "messages": [{"role": .., "content": ..}, ..]} */
};

/* What transformers gives a template: a sandbox that changes nothing, its two options for blanks, break and
 * continue, generation blocks, JSON that is not escaped for HTML, raise_exception and strftime_now. */
static const char script[] =
    "import json, sys\n"
    "def answer(**fields):\n"
    "    sys.stdout.buffer.write(json.dumps(fields).encode())\n"
    "    sys.exit()\n"
    "try:\n"
    "    import jinja2, jinja2.ext, jinja2.sandbox\n"
    "except ImportError:\n"
    "    answer(missing='jinja2')\n"
    "from datetime import datetime\n"
    "class Generation(jinja2.ext.Extension):\n"
    "    tags = {'generation'}\n"
    "    def parse(self, parser):\n"
    "        line = next(parser.stream).lineno\n"
    "        body = parser.parse_statements(['name:endgeneration'], drop_needle=True)\n"
    "        return jinja2.nodes.CallBlock(self.call_method('same'), [], [], body).set_lineno(line)\n"
    "    def same(self, caller):\n"
    "        return caller()\n"
    "def raise_exception(message):\n"
    "    raise jinja2.exceptions.TemplateError(message)\n"
    "def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):\n"
    "    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, "
    "sort_keys=sort_keys)\n"
    "try:\n"
    "    request = json.load(sys.stdin.buffer)\n"
    "    world = jinja2.sandbox.ImmutableSandboxedEnvironment(\n"
    "        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])\n"
    "    world.filters['tojson'] = tojson\n"
    "    world.globals['raise_exception'] = raise_exception\n"
    "    world.globals['strftime_now'] = lambda form: datetime.now().strftime(form)\n"
    "    template = world.from_string(request['template'])\n"
    "    answer(text=template.render(messages=request['messages'], tools=None, documents=None,\n"
    "                                add_generation_prompt=True, **request['special_tokens']))\n"
    "except Exception as error:\n"
    "    line = getattr(error, 'lineno', None)\n"
    "    answer(error=(f'line {line}: ' if line else '') + (str(error) or type(error).__name__))\n";

/* ---- the child ---- */

/* Returns the child, whose standard input and output is the other end of *line; -1: it could not be
 * started. */
static pid_t jinja_child_start(const char *python, int *line, tern_error *err)
{
    char isolated[] = "-I", command[] = "-c";
    char *argv[] = {(char *)python, isolated, command, (char *)script, NULL};
    int ends[2];
    pid_t pid = -1;
    posix_spawn_file_actions_t actions;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) {
        tern__error_errno(err, FUNC, TERN_E_SYSTEM, "cannot make a socket");
        return -1;
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    if (posix_spawnp(&pid, python, &actions, NULL, argv, environ)) pid = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    *line = ends[0];
    if (pid < 0) close(ends[0]);
    return pid;
}

/* Sends the request and reads the answer up to its end. A child that does not read has failed, and says
 * so. */
static int jinja_child_ask(int line, const char *request, tern_text *answer, tern_error *err)
{
    for (size_t sent = 0, bytes = strlen(request); sent < bytes;) {
        ssize_t some = send(line, request + sent, bytes - sent, MSG_NOSIGNAL);
        if (some < 0 && errno == EINTR) continue;
        if (some <= 0) break;
        sent += (size_t)some;
    }
    shutdown(line, SHUT_WR);
    for (;;) {
        if (tern__text_reserve(answer, 1 << 16, FUNC, err)) return TERN_E_MEMORY;
        ssize_t some = read(line, answer->text + answer->bytes, answer->room - answer->bytes - 1);
        if (some < 0 && errno == EINTR) continue;
        if (some <= 0) break;
        answer->bytes += (size_t)some;
    }
    answer->text[answer->bytes] = '\0';
    return TERN_OK;
}

/* Returns the answer of a Python, or NULL if there is none. */
static cJSON *python_ask(const char *python, const char *request, tern_error *err)
{
    tern_text answer = {0};
    cJSON *object = NULL;
    int line;
    pid_t pid = jinja_child_start(python, &line, err);
    if (pid < 0) return NULL;
    if (!jinja_child_ask(line, request, &answer, err)) object = cJSON_Parse(answer.text);
    close(line);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    tern_text_free(&answer);
    return object;
}

/* Takes over what a Python has answered. */
static int answer_read(cJSON *answer, tern_text *prompt, tern_error *err)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(answer, "text")),
               *error = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(answer, "error"));
    prompt->bytes = 0;
    if (text)
        tern__text_add(prompt, text, strlen(text), FUNC, err);
    else
        tern__error_set(err, FUNC, TERN_E_FORMAT, "the chat template: %s", error ? error : "no answer");
    cJSON_Delete(answer);
    return err->code;
}

int tern__chat_prompt(const tern__chat *chat, tern_text *prompt, tern_error *err)
{
    static const char *const pythons[] = {"/usr/bin/python3", "python3"};
    char *request = cJSON_PrintUnformatted(chat->request);
    if (!request)
        return tern__error_set(err, FUNC, TERN_E_MEMORY, "out of memory: a chat of %d messages",
                               cJSON_GetArraySize(cJSON_GetObjectItem(chat->request, "messages")));
    cJSON *answer = NULL;
    for (size_t i = 0; i < TERN__COUNT(pythons) && !answer && !err->code; i++) {
        answer = python_ask(pythons[i], request, err);
        if (cJSON_HasObjectItem(answer, "missing")) {
            cJSON_Delete(answer);
            answer = NULL;
        }
    }
    cJSON_free(request);
    if (answer) return answer_read(answer, prompt, err);
    return tern__error_set(err, FUNC, TERN_E_UNSUPPORTED,
                           "a chat template needs python3 with Jinja2: apt-get install python3-jinja2");
}

/* ---- the conversation ---- */

/* Returns the template of a tokenizer_config.json, which may have several with names. */
static const char *template_of(const cJSON *config)
{
    const cJSON *field = cJSON_GetObjectItemCaseSensitive(config, "chat_template"), *one;
    if (!cJSON_IsArray(field)) return cJSON_GetStringValue(field);
    cJSON_ArrayForEach(one, field)
    {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(one, "name"));
        if (name && !strcmp(name, "default"))
            return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(one, "template"));
    }
    return NULL;
}

/* Adds the tokens by the names under which templates know them, each as its text. */
static void special_tokens_add(cJSON *to, const cJSON *config)
{
    const cJSON *field;
    cJSON_ArrayForEach(field, config)
    {
        const cJSON *content =
            cJSON_IsObject(field) ? cJSON_GetObjectItemCaseSensitive(field, "content") : field;
        size_t length = strlen(field->string);
        bool is_token = length > 6 && !strcmp(field->string + length - 6, "_token");
        if (is_token && cJSON_IsString(content) && !cJSON_HasObjectItem(to, field->string))
            cJSON_AddStringToObject(to, field->string, content->valuestring);
    }
}

/* Reads a file of the folder, if it is there. */
static cJSON *chat_file_read(const char *folder, const char *name, tern_error *err)
{
    char *path = tern__path_join(folder, name, FUNC, err);
    cJSON *object = path && !access(path, F_OK) ? tern__config_read(path, FUNC, err) : NULL;
    tern__free(path);
    return object;
}

static char *chat_template_load(const char *folder, tern_error *err)
{
    size_t bytes;
    char *path = tern__path_join(folder, "chat_template.jinja", FUNC, err);
    char *text = path && !access(path, F_OK) ? tern__config_load(path, &bytes, FUNC, err) : NULL;
    tern__free(path);
    return text;
}

static int chat_request_fill(tern__chat *chat, const char *folder, tern_error *err)
{
    cJSON *tokens = cJSON_AddObjectToObject(chat->request, "special_tokens");
    cJSON *config = chat_file_read(folder, "tokenizer_config.json", err),
          *map = err->code ? NULL : chat_file_read(folder, "special_tokens_map.json", err);
    char *file = err->code ? NULL : chat_template_load(folder, err);
    const char *template = file ? file : template_of(config);
    if (!err->code && !template)
        tern__error_set(err, FUNC, TERN_E_UNSUPPORTED,
                        "%s has no chat template: neither chat_template.jinja nor the \"chat_template\" of a "
                        "tokenizer_config.json",
                        folder);
    special_tokens_add(tokens, config);
    special_tokens_add(tokens, map);
    bool has_room = tokens && (!template || cJSON_AddStringToObject(chat->request, "template", template)) &&
                    cJSON_AddArrayToObject(chat->request, "messages");
    if (!has_room) tern__error_set(err, FUNC, TERN_E_MEMORY, "out of memory: a chat template");
    tern__free(file);
    cJSON_Delete(config);
    cJSON_Delete(map);
    return err->code;
}

tern__chat *tern__chat_open(const char *folder, tern_error *err)
{
    tern__chat *chat = tern__alloc(sizeof(*chat), FUNC, err);
    if (!chat) return NULL;
    chat->request = cJSON_CreateObject();
    if (!chat_request_fill(chat, folder, err)) return chat;
    tern__chat_free(chat);
    return NULL;
}

void tern__chat_free(tern__chat *chat)
{
    if (chat) cJSON_Delete(chat->request);
    tern__free(chat);
}

int tern__chat_add(tern__chat *chat, const char *role, const char *content, tern_error *err)
{
    cJSON *message = cJSON_CreateObject();
    bool has_room = cJSON_AddStringToObject(message, "role", role) &&
                    cJSON_AddStringToObject(message, "content", content) &&
                    cJSON_AddItemToArray(cJSON_GetObjectItem(chat->request, "messages"), message);
    if (has_room) return TERN_OK;
    cJSON_Delete(message);
    return tern__error_set(err, FUNC, TERN_E_MEMORY, "out of memory: a message of %zu bytes",
                           strlen(content));
}

void tern__chat_drop(tern__chat *chat)
{
    cJSON *messages = cJSON_GetObjectItem(chat->request, "messages");
    cJSON_DeleteItemFromArray(messages, cJSON_GetArraySize(messages) - 1);
}
