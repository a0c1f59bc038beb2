// Command objects prints what KubeVirt installs for its virt-controller and virt-api, as one JSON
// List. Every object comes from virt-operator's own constructors.
package main

import (
	"encoding/json"
	"log"
	"os"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/components"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/rbac"
)

const namespace = "kubevirt"

var definitions = []func() (*apiextensions.CustomResourceDefinition, error){
	components.NewVirtualMachineInstanceCrd,
	components.NewVirtualMachineCrd,
	components.NewReplicaSetCrd,
	components.NewVirtualMachinePoolCrd,
	components.NewVirtualMachineInstanceMigrationCrd,
	components.NewMigrationPolicyCrd,
	components.NewKubeVirtCrd,
	components.NewPresetCrd,
	components.NewVirtualMachineInstancetypeCrd,
	components.NewVirtualMachineClusterInstancetypeCrd,
	components.NewVirtualMachinePreferenceCrd,
	components.NewVirtualMachineClusterPreferenceCrd,
	components.NewVirtualMachineCloneCrd,
	components.NewVirtualMachineSnapshotCrd,
	components.NewVirtualMachineSnapshotContentCrd,
	components.NewVirtualMachineRestoreCrd,
	components.NewVirtualMachineExportCrd,
	components.NewVirtualMachineBackupCrd,
	components.NewVirtualMachineBackupTrackerCrd,
}

func main() {
	var items []any
	for _, construct := range definitions {
		definition, err := construct()
		if err != nil {
			log.Fatal(err)
		}
		definition.APIVersion, definition.Kind = "apiextensions.k8s.io/v1", "CustomResourceDefinition"
		items = append(items, definition)
	}
	// false: the rules of another project, for networks that do not exist here, stay away
	for _, object := range rbac.GetAllController(namespace, false) {
		items = append(items, object)
	}
	for _, object := range rbac.GetAllApiServer(namespace) {
		items = append(items, object)
	}
	for _, object := range rbac.GetAllCluster() {
		items = append(items, object)
	}
	for _, service := range components.NewVirtAPIAPIServices(namespace) {
		items = append(items, service)
	}
	items = append(items,
		components.NewVirtAPIMutatingWebhookConfiguration(namespace),
		components.NewVirtAPIValidatingWebhookConfiguration(namespace),
		components.NewVirtLauncherPodMutatingWebhookConfiguration(namespace),
	)
	list := map[string]any{"apiVersion": "v1", "kind": "List", "items": items}
	if err := json.NewEncoder(os.Stdout).Encode(list); err != nil {
		log.Fatal(err)
	}
}
