{{- /* CEL of the two policies in limits-policies.yaml. */ -}}

{{- define "neuron-dra.oldNames" -}}['aws.amazon.com/neuron', 'aws.amazon.com/neurondevice', 'aws.amazon.com/neuroncore']{{- end -}}

{{- /* The extended resources of this chart's DeviceClasses, as a pattern. */ -}}
{{- define "neuron-dra.ours" -}}'^deviceclass[.]resource[.]kubernetes[.]io/(connected|cores)-[1-9][0-9]{0,17}[.]neuron[.]aws[.]com$'{{- end -}}

{{- /* The labels of a node with its instance type, the old one last. */ -}}
{{- define "neuron-dra.typeLabels" -}}['node.kubernetes.io/instance-type', 'beta.kubernetes.io/instance-type']{{- end -}}

{{- /* The pod spec of an object: of a Pod, of a workload with a template, or of a CronJob. */ -}}
{{- define "neuron-dra.podSpec" -}}
(has(dyn({{ . }}.spec).jobTemplate) ? dyn({{ . }}.spec).jobTemplate.spec.template.spec :
has(dyn({{ . }}.spec).template) ? dyn({{ . }}.spec).template.spec : dyn({{ . }}.spec))
{{- end -}}

{{- /* What a container requests from the device plugin: [devices, cores]. Limits that the API server will reject, such as
0.5, count nothing; numbers of more than 18 digits count as 18 nines, so that no sum overflows. */ -}}
{{- define "neuron-dra.counts" -}}
[['aws.amazon.com/neuron', 'aws.amazon.com/neurondevice'], ['aws.amazon.com/neuroncore']].map(names, names
.filter(r, r in c.?resources.?limits.orValue({}) &&
c.?resources.?requests[?r].orValue(c.resources.limits[r]) == c.resources.limits[r])
.map(r, quantity(c.resources.limits[r]))
.map(q, q.isGreaterThan(quantity('999999999999999999')) ? 999999999999999999 :
q.isInteger() && q.isGreaterThan(quantity('0')) ? q.asInteger() : 0).sum())
{{- end -}}

{{- /* Variables about the containers of variables.pod. */ -}}
{{- define "neuron-dra.limitVariables" -}}
- name: mains
  expression: >-
    variables.pod.containers
- name: inits
  expression: >-
    variables.pod.?initContainers.orValue([])
# Sidecars are init containers that run as long as the main ones, so they keep devices of their own.
- name: ends
  expression: >-
    variables.inits.map(c, c.?restartPolicy.orValue('') != 'Always')
- name: mainCounts
  expression: >-
    variables.mains.map(c, {{ include "neuron-dra.counts" . | nindent 4 }})
- name: initCounts
  expression: >-
    variables.inits.map(c, {{ include "neuron-dra.counts" . | nindent 4 }})
- name: mainsRequest
  expression: >-
    variables.mainCounts.exists(n, n[0] + n[1] > 0)
# The scheduler reuses a device of an init container only under the same name: so it gets the smallest number of a main
# container that holds its own, -1 if there is none.
- name: initTargets
  expression: >-
    lists.range(variables.inits.size()).map(i, [0, 1].map(k,
    variables.initCounts[i][k] == 0 || !variables.ends[i] ? variables.initCounts[i][k] :
    !variables.mainsRequest ? lists.range(variables.inits.size()).filter(j, variables.ends[j]).map(j, variables.initCounts[j][k]).max() :
    variables.mainCounts.exists(n, n[k] >= variables.initCounts[i][k]) ?
    variables.mainCounts.filter(n, n[k] >= variables.initCounts[i][k]).map(n, n[k]).min() : -1))
# Why the pod cannot be rewritten.
- name: problems
  expression: >-
    (variables.mains + variables.inits).filter(c, {{ include "neuron-dra.oldNames" . }}.exists(r, c.?resources.?limits[?r].orValue('0') != '0'))
    .map(c, {'name': [c.name], 'requests': {{ include "neuron-dra.oldNames" . }}.filter(r, c.?resources.?limits[?r].orValue('0') != '0') +
    c.resources.limits.filter(r, r.matches({{ include "neuron-dra.ours" . }}) && c.resources.limits[r] != '0')})
    .filter(m, m.requests.size() > 1)
    .map(m, 'container ' + m.name[0] + ' requests ' + m.requests.join(' and ') + ' at once; keep one of them' +
    (m.requests.exists(r, r.startsWith('deviceclass.')) ? ', and delete LimitRanges on ' + m.requests[0] + ', which add it' : '')) +
    lists.range(variables.inits.size()).filter(i, variables.initTargets[i].exists(n, n < 0))
    .map(i, 'init container ' + variables.inits[i].name +
    (variables.mainCounts.exists(n, n[variables.initTargets[i][0] < 0 ? 0 : 1] > 0) ?
    ' requests ' + string(variables.initTargets[i][0] < 0 ? variables.initCounts[i][0] : variables.initCounts[i][1]) +
    (variables.initTargets[i][0] < 0 ? ' devices' : ' cores') +
    ', more than every main container; the scheduler would give it devices of its own, which the pod keeps until it ends: request fewer, or as many in a main container' :
    ' and the main containers count in different resources; use either aws.amazon.com/neuron or aws.amazon.com/neuroncore in a pod')) +
    (!variables.mainsRequest && [0, 1].all(k, lists.range(variables.inits.size()).exists(i, variables.ends[i] && variables.initCounts[i][k] > 0)) ?
    ['init containers request devices and cores; use either aws.amazon.com/neuron or aws.amazon.com/neuroncore in a pod'] : [])
{{- end -}}

{{- /* The patches of one list of containers: the limit, and the request, of each container that has a number. */ -}}
{{- define "neuron-dra.patches" -}}
lists.range(variables.{{ .list }}.size()).map(i, {{ include "neuron-dra.oldNames" . }}
.filter(r, variables.{{ .counts }}[i][r.endsWith('core') ? 1 : 0] > 0 &&
variables.{{ .list }}[i].?resources.?limits[?r].orValue('0') != '0')
.map(r, ['limits', 'requests'].filter(f, r in variables.{{ .list }}[i].resources[?f].orValue({}))
.map(f, [
JSONPatch{op: 'remove', path: '/spec/{{ .field }}/' + string(i) + '/resources/' + f + '/' + r.replace('/', '~1')},
JSONPatch{op: 'add', path: '/spec/{{ .field }}/' + string(i) + '/resources/' + f +
'/deviceclass.resource.kubernetes.io~1' + (r.endsWith('core') ? 'cores-' : 'connected-') +
string(variables.{{ .counts }}[i][r.endsWith('core') ? 1 : 0]) + '.neuron.aws.com', value: '1'}
]))).flatten().flatten().flatten()
{{- end -}}
