// Takes the gates off all pods of a namespace as fast as the API server lets a client: so many
// requests under way at once, no limit of the client's own, and answers without the pod's body.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/clientcmd"
)

const gate = "holdfast.dev/delay"

var pods = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// release tests all that Holdfast tests: the pod's uid, its resourceVersion, and the gate.
func release(ctx context.Context, client metadata.Interface, pod *metav1.PartialObjectMetadata) error {
	patch, err := json.Marshal([]operation{
		{"test", "/metadata/uid", pod.UID},
		{"test", "/metadata/resourceVersion", pod.ResourceVersion},
		{"test", "/spec/schedulingGates/0", map[string]string{"name": gate}},
		{"remove", "/spec/schedulingGates/0", nil},
	})
	if err != nil {
		return err
	}
	_, err = client.Resource(pods).Namespace(pod.Namespace).Patch(
		ctx, pod.Name, types.JSONPatchType, patch, metav1.PatchOptions{})
	return err
}

func run(kubeconfig, namespace string, at time.Time, workers int) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	config.UserAgent = "client-go-peer"
	client, err := metadata.NewForConfig(metadata.ConfigFor(config))
	if err != nil {
		return err
	}
	ctx := context.Background()
	found, err := client.Resource(pods).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	time.Sleep(time.Until(at))
	due := make(chan *metav1.PartialObjectMetadata, len(found.Items))
	for index := range found.Items {
		due <- &found.Items[index]
	}
	close(due)
	failures := make(chan error, workers)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for pod := range due {
				if err := release(ctx, client, pod); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	group.Wait()
	close(failures)
	return <-failures
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "the cluster")
	namespace := flag.String("namespace", "default", "whose pods")
	at := flag.Int64("at", 0, "when to begin, in milliseconds since 1970")
	workers := flag.Int("workers", 32, "requests under way at once")
	flag.Parse()
	if err := run(*kubeconfig, *namespace, time.UnixMilli(*at), *workers); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
