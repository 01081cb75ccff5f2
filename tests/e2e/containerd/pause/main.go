// What runs in the containers of the tests: says how it found itself (the quota on cgroup v1), and waits
// for its end. With an argument it keeps so many CPUs busy meanwhile.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	score, err := os.ReadFile("/proc/self/oom_score_adj")
	fmt.Println("oom_score_adj", strings.TrimSpace(string(score)), err)
	quota, err := os.ReadFile("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
	fmt.Println("cpu_quota", strings.TrimSpace(string(quota)), err)
	if len(os.Args) > 1 {
		busy, _ := strconv.Atoi(os.Args[1])
		for range busy {
			go func() {
				for {
				}
			}()
		}
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	<-ended
}
