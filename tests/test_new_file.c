/* Files that take the place of others: whole or not at all, with the right mode, and nothing left behind. */

#include "base/new_file.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static char  folder[] = "/tmp/gemmule-files-XXXXXX";
static error why;

static const char *in_folder(const char *name) {
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static gm_status put(const char *name, const char *text, const error *problem) {
    new_file *file = NULL;
    why = (error){ 0 };
    if (new_file_open(in_folder(name), NEW_FILE_KEPT, &file, &why)) return why.status;
    new_file_write(file, text, strlen(text));
    return new_file_end(file, problem ? problem : &(error){ 0 }, &why);
}

static bool new_file_holds(const char *name, const char *text) {
    char         found[100] = "";
    FILE        *file = fopen(in_folder(name), "rb");
    const size_t n = file ? fread(found, 1, sizeof found - 1, file) : 0;
    if (file) fclose(file);
    return n == strlen(text) && !memcmp(found, text, n);
}

static unsigned mode_of(const char *name) {
    struct stat about = { 0 };
    stat(in_folder(name), &about);
    return about.st_mode & 0777;
}

static bool exists(const char *name) { return !access(in_folder(name), F_OK); }

int main(void) {
    CHECK(mkdtemp(folder));
    umask(022);

    TEST("a new file is private; one that was there keeps its mode");
    CHECK(!put("a", "one", NULL) && new_file_holds("a", "one") && mode_of("a") == 0600);
    chmod(in_folder("a"), 0644);
    CHECK(!put("a", "two", NULL) && new_file_holds("a", "two") && mode_of("a") == 0644);
    chmod(in_folder("a"), 0400);
    CHECK(!put("a", "three", NULL) && new_file_holds("a", "three") && mode_of("a") == 0400);

    TEST("a link to a file stays one, and the file behind it is replaced");
    char to[20];
    CHECK(!mkdir(in_folder("e"), 0700) && !symlink("../a", in_folder("e/link")));
    CHECK(!put("e/link", "behind", NULL) && new_file_holds("a", "behind") && mode_of("a") == 0400);
    CHECK(readlink(in_folder("e/link"), to, sizeof to) == 4);
    CHECK(!put("a", "three", NULL) && !remove(in_folder("e/link")) && !rmdir(in_folder("e")));

    TEST("the umask decides the mode of a new bulk file, which may also be written as a stream");
    new_file *bulk = NULL;
    CHECK(!new_file_open(in_folder("bulk"), NEW_FILE_BULK, &bulk, &why));
    CHECK(bulk && fputs("stream", new_file_stream(bulk)) >= 0 && !new_file_end(bulk, &(error){ 0 }, &why));
    CHECK(new_file_holds("bulk", "stream") && mode_of("bulk") == 0644);
    remove(in_folder("bulk"));

    TEST("a failure leaves the old file, and says what failed");
    const error problem = { .status = GM_IO, .why = "the GPU returned too little" };
    CHECK(put("a", "four", &problem) == GM_IO && !strcmp(why.why, "the GPU returned too little"));
    CHECK(new_file_holds("a", "three"));
    CHECK(put("no/such/folder", "x", NULL) == GM_IO && strstr(why.why, "No such file"));
    CHECK(put("", "x", NULL) == GM_IO && strstr(why.why, "folder"));

    TEST("what is no regular file is not replaced");
    CHECK(!mkdir(in_folder("b"), 0700) && put("b", "x", NULL) == GM_IO && strstr(why.why, "folder"));
    CHECK(!mkfifo(in_folder("c"), 0600) && put("c", "x", NULL) == GM_IO && strstr(why.why, "not a regular file"));

    TEST("parts that nobody writes are removed, and nothing else");
    const char *const parts[] = { ".gemmule-0123456789abcdef.part", ".gemmule-fedcba9876543210.part",
                                  ".gemmule-notes.part" };
    int               fd = -1;
    for (int i = 0; i < 3; i++) {
        fd = open(in_folder(parts[i]), O_WRONLY | O_CREAT, 0600);
        CHECK(fd >= 0);
        if (i == 1) CHECK(!flock(fd, LOCK_EX)); /* as its writer has it, who stays */
        else close(fd);
    }
    new_file *file = NULL;
    why = (error){ 0 };
    CHECK(!new_file_open(in_folder("d"), NEW_FILE_KEPT, &file, &why));
    CHECK(!exists(parts[0]) && exists(parts[1]) && exists(parts[2]));
    CHECK(!put("a", "five", NULL)); /* which must not take the part of "d" for one left behind */
    CHECK(new_file_write(file, "six", 3) && !new_file_end(file, &(error){ 0 }, &why) && new_file_holds("d", "six"));

    TEST("nothing is left in the folder");
    static const char *const all[] = { "a", "c", "d", ".gemmule-fedcba9876543210.part", ".gemmule-notes.part" };
    for (size_t i = 0; i < COUNT_OF(all); i++) CHECK(!remove(in_folder(all[i])));
    CHECK(!rmdir(in_folder("b")));
    CHECK_MESSAGE(!rmdir(folder), "%s", strerror(errno));
    return test_end();
}
