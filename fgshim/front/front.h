/* The parts of the commands without an interpreter. */
#ifndef FG_FRONT_H
#define FG_FRONT_H

#include <stdbool.h>
#include <sys/types.h>

#include "text.h"

enum { KEY_SIZE = 33 }; /* 32 characters and the NUL */

struct command {
    const char *name; /* a command, or a name of Slurm */
    char **words;     /* its arguments */
    char key[KEY_SIZE]; /* of a submission */
    bool is_sent;       /* the controller may have the submission */
};

struct controller {
    char run[108]; /* its run directory */
    uid_t owner;
};

/* Write the path of this program; return its name in it, or NULL. */
char *own_path(char *path, size_t room);

/* Execute the Python command. Does not return. */
void leave_to_python(const struct command *command);

/* Find the controller that the Python command would address; false: leave it to that. */
bool find_controller(struct controller *it);

/* Write the run directory of the user's own controller; false: it cannot be used. ENOENT: there is none. */
bool own_run(char *run, size_t room);

/* Connect to a controller of the right user; -1: leave it to the Python command. */
int dial(const struct controller *it);

bool send_all(int fd, const char *data, size_t size);

/* Read one line; false: the connection is lost, or nothing came for some seconds. */
bool receive_line(int fd, struct text *line);

/* Tell whether the environment has variables whose names begin so, except one (NULL: no exception). */
bool has_variables(const char *prefix, const char *except);

/* Tell whether the standard streams are open: a socket must not take the place of one. */
bool are_streams_open(void);

/* Write a text to a descriptor; false: errno says why not. */
bool write_all(int fd, const struct text *text);

/* Submit the job of the command line, and print the answer; -1: the Python command has to do it. */
int submit(struct command *command);

/* Print the queue; -1: the Python command has to do it. */
int show_queue(struct command *command);

/* Cancel jobs that are named by number; -1: the Python command has to do it. */
int cancel(struct command *command);

#endif
